#include <gtest/gtest.h>

#include <algorithm>
#include <map>
#include <random>

#include "layout/geometry.h"

namespace kvo {

bool operator==(const Span& a, const Span& b) { return a.device == b.device && a.host == b.host && a.bytes == b.bytes; }

namespace {

using Ids = std::vector<std::int64_t>;
constexpr std::uintptr_t kBase = 1 << 20;

std::vector<Span> plan(const GroupGeometry& group, const Ids& blocks, const Ids& slots, std::int64_t skip = 0,
                       std::int64_t cut_bytes = 0) {
  std::vector<Span> spans;
  plan_spans(group, {blocks, slots, skip}, cut_bytes, spans);
  return spans;
}

TEST(Plan, PagesComeOneAfterAnotherInASlot) {
  const GroupGeometry group{{{kBase, 100, 60}, {2 * kBase, 100, 40}}, 10, 2};
  EXPECT_EQ(
      plan(group, {7, 3}, {8192}),
      (std::vector<Span>{
          {kBase + 700, 8192, 60}, {kBase + 300, 8252, 60}, {2 * kBase + 700, 8312, 40}, {2 * kBase + 300, 8352, 40}}));
}

TEST(Plan, BlocksThatAreNeighboursAreOneSpan) {
  const GroupGeometry group{{{kBase, 64, 64}, {2 * kBase, 64, 64}}, 100, 4};
  EXPECT_EQ(plan(group, {5, 6, 7, 9}, {0}), (std::vector<Span>{{kBase + 5 * 64, 0, 192},
                                                               {kBase + 9 * 64, 192, 64},
                                                               {2 * kBase + 5 * 64, 256, 192},
                                                               {2 * kBase + 9 * 64, 448, 64}}));
  EXPECT_EQ(plan(group, {4, 3, 2, 1}, {0}).size(), 8u);  // descending ids are no neighbours
}

TEST(Plan, NeighboursOnOneSideOnlyStayApart) {
  const GroupGeometry padded{{{kBase, 64, 60}}, 100, 2};
  EXPECT_EQ(plan(padded, {1, 2}, {0}).size(), 2u);
  const GroupGeometry single{{{kBase, 64, 64}}, 100, 1};
  EXPECT_EQ(plan(single, {1, 2}, {0, 4096}).size(), 2u);
}

// Two allocations may lie next to each other by chance; one copy must not span both.
TEST(Plan, PagesThatTouchAreNotJoinedAcrossPageRuns) {
  const GroupGeometry layers{{{kBase, 64, 64}, {kBase + 2 * 64, 64, 64}}, 2, 2};
  EXPECT_EQ(plan(layers, {0, 1}, {4096}), (std::vector<Span>{{kBase, 4096, 128}, {kBase + 128, 4224, 128}}));
}

TEST(Plan, SkippedBlocksAreOfTheFirstChunkOnly) {
  const GroupGeometry group{{{kBase, 100, 60}, {2 * kBase, 100, 40}}, 10, 2};
  EXPECT_EQ(plan(group, {7, 3, 5, 1}, {0, 4096}, 1), (std::vector<Span>{{kBase + 300, 60, 60},
                                                                        {2 * kBase + 300, 160, 40},
                                                                        {kBase + 500, 4096, 60},
                                                                        {kBase + 100, 4156, 60},
                                                                        {2 * kBase + 500, 4216, 40},
                                                                        {2 * kBase + 100, 4256, 40}}));
  EXPECT_TRUE(plan(group, {7, 3}, {0}, 2).empty());
  EXPECT_TRUE(plan(group, {}, {}).empty());
}

TEST(Plan, SpansAreCutAtMultiplesOfTheArenaOffset) {
  const GroupGeometry group{{{kBase, 100, 100}}, 10, 10};
  const Ids all = {0, 1, 2, 3, 4, 5, 6, 7, 8, 9};
  EXPECT_EQ(plan(group, all, {500}, 0, 512),
            (std::vector<Span>{{kBase, 500, 12}, {kBase + 12, 512, 512}, {kBase + 524, 1024, 476}}));
  EXPECT_EQ(plan(group, all, {1024}, 0, 1024), (std::vector<Span>{{kBase, 1024, 1000}}));
}

TEST(Plan, AppendsAndLeavesWhatIsThere) {
  const GroupGeometry group{{{kBase, 64, 64}}, 10, 1};
  std::vector<Span> spans = {{1, 2, 3}};
  const Ids blocks = {4}, slots = {0};
  plan_spans(group, {blocks, slots, 0}, 0, spans);
  EXPECT_EQ(spans, (std::vector<Span>{{1, 2, 3}, {kBase + 256, 0, 64}}));
}

TEST(Plan, OffsetsBeyond40Bits) {
  constexpr std::int64_t kStep = std::int64_t{1} << 42, kSlot = std::int64_t{1} << 45;
  const GroupGeometry group{{{kBase, kStep, 4096}}, 1000, 2};
  EXPECT_EQ(plan(group, {999, 3}, {kSlot + 4096}, 0, 8192),
            (std::vector<Span>{{kBase + 999 * kStep, kSlot + 4096, 4096}, {kBase + 3 * kStep, kSlot + 8192, 4096}}));
}

// Byte by byte: device address of each arena offset.
std::map<std::int64_t, std::uintptr_t> naive(const GroupGeometry& group, const Ids& blocks, const Ids& slots,
                                             std::int64_t skip) {
  std::map<std::int64_t, std::uintptr_t> bytes;
  for (std::size_t i = static_cast<std::size_t>(skip); i < blocks.size(); ++i) {
    const auto chunk = static_cast<std::int64_t>(i) / group.blocks_per_chunk;
    const auto j = static_cast<std::int64_t>(i) % group.blocks_per_chunk;
    std::int64_t before = 0;
    for (const PageRun& page : group.pages) {
      const std::int64_t host = slots[chunk] + before * group.blocks_per_chunk + j * page.bytes;
      for (std::int64_t k = 0; k < page.bytes; ++k) {
        bytes[host + k] = page.address + static_cast<std::uintptr_t>(blocks[i] * page.block_stride + k);
      }
      before += page.bytes;
    }
  }
  return bytes;
}

TEST(Plan, AgreesWithTheByteWiseReference) {
  std::mt19937 random(7);
  const auto pick = [&](int least, int most) { return std::uniform_int_distribution<int>(least, most)(random); };
  for (int round = 0; round < 300; ++round) {
    GroupGeometry group{{}, pick(4, 12), pick(1, 4)};
    std::uintptr_t address = kBase;
    for (int p = pick(1, 3); p > 0; --p) {
      const std::int64_t bytes = pick(1, 40), stride = bytes + (pick(0, 1) ? 0 : pick(1, 9));
      group.pages.push_back({address, stride, bytes});
      address += static_cast<std::uintptr_t>(group.num_blocks * stride + (pick(0, 1) ? 0 : pick(1, 99)));
    }
    Ids ids(group.num_blocks), slots;
    for (std::size_t i = 0; i < ids.size(); ++i) ids[i] = static_cast<std::int64_t>(i);
    if (pick(0, 1)) std::shuffle(ids.begin(), ids.end(), random);
    const std::int64_t chunks = group.num_blocks / group.blocks_per_chunk, cut = pick(0, 1) ? 0 : pick(1, 200);
    ids.resize(chunks * group.blocks_per_chunk);
    for (std::int64_t i = 0; i < chunks; ++i) slots.push_back((chunks - i) * group.payload_bytes());  // may touch
    const std::int64_t skip = pick(0, static_cast<int>(group.blocks_per_chunk));
    const auto expected = naive(group, ids, slots, skip);
    std::map<std::int64_t, std::uintptr_t> got;
    std::size_t bytes = 0;
    Span last{0, 0, 0};
    for (const Span& span : plan(group, ids, slots, skip, cut)) {
      ASSERT_GT(span.bytes, 0);
      ASSERT_TRUE(cut == 0 || span.host / cut == (span.host + span.bytes - 1) / cut);
      const bool touches = last.device + last.bytes == span.device && last.host + last.bytes == span.host;
      ASSERT_TRUE(!touches || (cut > 0 && span.host % cut == 0)) << "not merged";
      for (std::int64_t k = 0; k < span.bytes; ++k, ++bytes) got[span.host + k] = span.device + k;
      last = span;
    }
    ASSERT_EQ(got, expected);
    ASSERT_EQ(bytes, expected.size());  // nothing twice
  }
}

}  // namespace
}  // namespace kvo
