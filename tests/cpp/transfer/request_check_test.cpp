#include "transfer/request_check.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <array>
#include <numeric>
#include <random>
#include <set>

namespace kvo {
namespace {

constexpr std::int64_t kBlocks = 300, kSlots = 200, kReady = 150, kRounds = 2000;  // far more rounds than a byte counts

class RequestCheckTest : public ::testing::Test {
 protected:
  RequestCheckTest() : check_(groups_, extents_, kSlots * kSlotAlign) {}
  Status ask(const std::vector<std::int64_t>& blocks, const std::vector<std::int64_t>& slots, std::int64_t skip = 0) {
    ids_ = pool_.take(static_cast<std::int64_t>(blocks.size()), static_cast<std::int64_t>(slots.size()));
    return check_.check({0, blocks, slots, skip}, kReady * kSlotAlign, ids_);
  }

  const std::vector<GroupGeometry> groups_{{{PageRun{1 << 20, 64, 64}}, kBlocks, 1}};
  const ExtentPlan extents_ = plan_extents(kSlots * kSlotAlign, {kSlotAlign});
  RequestCheck check_;
  IdPool pool_{4};
  RequestIds ids_;
};

bool bad(const std::vector<std::int64_t>& ids, std::int64_t limit) {
  const bool in_range = std::all_of(ids.begin(), ids.end(), [&](auto id) { return id >= 0 && id < limit; });
  return !in_range || std::set(ids.begin(), ids.end()).size() != ids.size();
}

TEST_F(RequestCheckTest, AgreesWithASetThroughManyRounds) {
  std::mt19937 random(1);
  for (int round = 0; round < kRounds; ++round) {
    std::vector<std::int64_t> blocks(random() % 20), slots(blocks.size());
    for (auto& id : blocks) id = static_cast<std::int64_t>(random() % (kBlocks + 2)) - 1;
    for (auto& id : slots) id = static_cast<std::int64_t>(random() % (kReady + 2)) - 1;
    const bool refused = bad(blocks, kBlocks) || bad(slots, kReady);
    ASSERT_EQ(ask(blocks, slots).ok(), !refused) << "round " << round;
    for (std::size_t i = 0; !refused && i < blocks.size(); ++i) {
      ASSERT_EQ(ids_.blocks.ids[i], blocks[i]);
      ASSERT_EQ(ids_.slots.ids[i], slots[i]);
    }
  }
}

TEST_F(RequestCheckTest, AllIdsAtOnceInEveryRound) {
  std::vector<std::int64_t> ids(kReady);
  std::iota(ids.begin(), ids.end(), 0);
  for (int round = 0; round < kRounds; ++round) ASSERT_TRUE(ask(ids, ids).ok()) << "round " << round;
}

TEST_F(RequestCheckTest, IdsBeyond32BitsAreRefused) {
  for (const std::int64_t id : {-1L, std::int64_t{1} << 31, std::int64_t{1} << 32, INT64_MAX, INT64_MIN}) {
    EXPECT_FALSE(ask({id}, {0}).ok()) << id;
    EXPECT_FALSE(ask({0}, {id}).ok()) << id;
  }
}

// Long lists are copied in another way.
TEST_F(RequestCheckTest, LongListsAgreeWithASetToo) {
  constexpr std::int64_t kMany = 50003, kLong = 20003;  // no multiple of anything
  const std::vector<GroupGeometry> groups{{{PageRun{1 << 20, 64, 64}}, kMany, 1}};
  const ExtentPlan extents = plan_extents(kMany * kSlotAlign, {kSlotAlign});
  RequestCheck check(groups, extents, kMany * kSlotAlign);
  std::mt19937 random(1);
  std::vector<std::int64_t> all(kMany);
  std::iota(all.begin(), all.end(), 0);
  const std::array<std::int64_t, 7> strange{-1, kMany, 1L << 31, 1L << 32, (1L << 32) + 5, INT64_MAX, INT64_MIN};
  for (int round = 0; round < 60; ++round) {
    std::shuffle(all.begin(), all.end(), random);
    std::vector<std::int64_t> blocks(all.begin(), all.begin() + kLong), slots(all.end() - kLong, all.end());
    const std::size_t at = random() % kLong;
    std::vector<std::int64_t>& list = random() % 2 ? blocks : slots;
    if (round % 3 == 1) list[at] = strange[random() % strange.size()];
    if (round % 3 == 2) list[at] = list[(at + 1 + random() % (kLong - 1)) % kLong];
    RequestIds ids = pool_.take(kLong, kLong);
    const bool ok = check.check({0, blocks, slots, 0}, kMany * kSlotAlign, ids).ok();
    ASSERT_EQ(ok, round % 3 == 0) << "round " << round;
    if (ok) {
      ASSERT_TRUE(std::equal(blocks.begin(), blocks.end(), ids.blocks.ids.get()));
      ASSERT_TRUE(std::equal(slots.begin(), slots.end(), ids.slots.ids.get()));
    }
    pool_.put_back(ids);
  }
}

TEST_F(RequestCheckTest, SkippedBlocksMayBeAnything) {
  const std::vector<GroupGeometry> groups{{{PageRun{1 << 20, 64, 64}}, kBlocks, 4}};
  RequestCheck check(groups, extents_, kSlots * kSlotAlign);
  const std::vector<std::int64_t> blocks{-1, -1, 5, 6}, slots{3};
  RequestIds ids = pool_.take(4, 1);
  EXPECT_TRUE(check.check({0, blocks, slots, 2}, kReady * kSlotAlign, ids).ok());
  EXPECT_FALSE(check.check({0, blocks, slots, 1}, kReady * kSlotAlign, ids).ok());
}

TEST_F(RequestCheckTest, SaysWhichIsRepeatedAndWhere) {
  EXPECT_NE(ask({7, 8, 7}, {1, 2, 3}).message().find("block id 7 is given twice (again at position 2)"),
            std::string::npos);
  EXPECT_NE(ask({7, 8, 9}, {1, 2, 2}).message().find("slot 2 is given twice (again at position 2)"), std::string::npos);
}

}  // namespace
}  // namespace kvo
