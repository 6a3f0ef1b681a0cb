#include <gtest/gtest.h>

#include <cstdint>

#include "layout/geometry.h"

namespace kvo {
namespace {

using Pages = std::vector<PageRun>;
constexpr std::uintptr_t kBase = 1 << 20;

Pages good(Result<Pages> result) {
  EXPECT_TRUE(result.ok()) << result.status().message();
  return result.ok() ? *result : Pages{};
}

void expect_refused(const Result<Pages>& result, const std::string& part) {
  ASSERT_FALSE(result.ok());
  EXPECT_EQ(result.status().code(), Code::invalid);
  EXPECT_NE(result.status().message().find(part), std::string::npos) << result.status().message();
}

TEST(Pages, BlocksOutermostAreOnePage) {
  EXPECT_EQ(good(pages_of({kBase, 2, {100, 2, 16, 8, 128}, {65536, 32768, 2048, 256, 2}, 0})),
            (Pages{{kBase, 65536, 65536}}));
}

TEST(Pages, TheOrderOfTheOtherDimensionsInMemoryDoesNotMatter) {
  EXPECT_EQ(good(pages_of({kBase, 2, {100, 16, 8, 128}, {32768, 256, 4096, 2}, 0})), (Pages{{kBase, 32768, 32768}}));
}

TEST(Pages, KAndVApart) {
  EXPECT_EQ(good(pages_of({kBase, 1, {2, 10, 64}, {640, 64, 1}, 1})), (Pages{{kBase, 64, 64}, {kBase + 640, 64, 64}}));
}

TEST(Pages, OuterDimensionsAreListedByAddress) {
  // (heads, layers, blocks, bytes): heads step less than layers
  EXPECT_EQ(good(pages_of({kBase, 1, {2, 2, 4, 8}, {40, 100, 8, 1}, 2})),
            (Pages{{kBase, 8, 8}, {kBase + 40, 8, 8}, {kBase + 100, 8, 8}, {kBase + 140, 8, 8}}));
}

TEST(Pages, PaddingIsLeftOut) {
  EXPECT_EQ(good(pages_of({kBase, 1, {10, 700}, {1000, 1}, 0})), (Pages{{kBase, 1000, 700}}));
  EXPECT_EQ(good(pages_of({kBase, 1, {10, 2, 7}, {1000, 10, 1}, 0})), (Pages{{kBase, 1000, 7}, {kBase + 10, 1000, 7}}));
}

TEST(Pages, DimensionsOfOneEntryAndSingleBlocksHaveNoStride) {
  EXPECT_EQ(good(pages_of({kBase, 2, {5, 1, 8}, {16, 0, 2}, 0})), (Pages{{kBase, 16, 16}}));
  EXPECT_EQ(good(pages_of({kBase, 2, {1, 8}, {-4, 2}, 0})), (Pages{{kBase, 0, 16}}));
  EXPECT_EQ(good(pages_of({kBase, 4, {7}, {4}, 0})), (Pages{{kBase, 4, 4}}));
}

TEST(Pages, OffsetsBeyond40Bits) {
  constexpr std::int64_t kStep = std::int64_t{1} << 41;
  EXPECT_EQ(good(pages_of({kBase, 1, {2, 1000, 4096}, {1000 * kStep, kStep, 1}, 1})),
            (Pages{{kBase, kStep, 4096}, {kBase + 1000 * kStep, kStep, 4096}}));
}

TEST(Pages, WhatIsNotUnderstoodIsRefusedWithShapeAndStrides) {
  expect_refused(pages_of({kBase, 2, {10, 8}, {-16, 2}, 0}), "shape (10, 8), strides (-16, 2) bytes");
  expect_refused(pages_of({kBase, 2, {10, 8}, {0, 2}, 0}), "dimension 0 has a zero or negative stride");
  expect_refused(pages_of({kBase, 2, {10, 0}, {16, 2}, 0}), "dimension 1 is empty");
  expect_refused(pages_of({kBase, 2, {10, 0}, {0, 2}, 0}), "dimension 1 is empty");
  expect_refused(pages_of({kBase, 2, {0, 8}, {16, 2}, 0}), "dimension 0 is empty");
  expect_refused(pages_of({kBase, 2, {10, 8}, {15, 2}, 0}), "blocks overlap");
  expect_refused(pages_of({kBase, 2, {10, 2, 8}, {48, 12, 2}, 0}), "entries overlap");
  expect_refused(pages_of({kBase, 1, {4, 10, 8}, {72, 8, 1}, 1}), "entries overlap");  // heads step into blocks
  expect_refused(pages_of({kBase, 2, {10, 8}, {16, 2}, 2}), "block_dim must be 0 to 1");
  expect_refused(pages_of({kBase, 2, {10, 8}, {16, 2}, -1}), "block_dim must be 0 to 1");
  expect_refused(pages_of({kBase, 2, {}, {}, 0}), "block_dim");
  expect_refused(pages_of({kBase, 2, {10, 8}, {16}, 0}), "differ in length");
  expect_refused(pages_of({kBase, 0, {10, 8}, {16, 2}, 0}), "at least 1 byte");
  expect_refused(pages_of({0, 2, {10, 8}, {16, 2}, 0}), "address is 0");
}

TEST(Pages, TooManyPiecesAndTooManyBytesAreRefused) {
  EXPECT_EQ(good(pages_of({kBase, 1, {2, 65536}, {1 << 20, 2}, 0})).size(), 65536u);
  expect_refused(pages_of({kBase, 1, {2, 65537}, {1 << 20, 2}, 0}), "more than 65536 pieces");
  expect_refused(pages_of({kBase, 1, {1 << 30, 2}, {std::int64_t{1} << 40, 1}, 0}), "more than 2^63 bytes");
  expect_refused(pages_of({kBase, 1, {3, INT64_MAX / 2}, {INT64_MAX / 2, 1}, 0}), "more than 2^63 bytes");
  expect_refused(pages_of({UINTPTR_MAX - 10, 1, {2, 16}, {16, 1}, 0}), "beyond the address 2^63");
}

TEST(Merge, IdenticalPagesCountOnce) {
  EXPECT_EQ(good(merge_pages({{kBase, 64, 64}, {kBase, 64, 64}}, 10)), (Pages{{kBase, 64, 64}}));
  EXPECT_EQ(good(merge_pages({{kBase, 64, 64}, {kBase, 7, 64}}, 1)), (Pages{{kBase, 0, 64}}));
}

TEST(Merge, NeighboursOfOneRowBecomeOnePage) {
  EXPECT_EQ(good(merge_pages({{kBase, 192, 64}, {kBase + 64, 192, 64}, {kBase + 128, 192, 64}}, 10)),
            (Pages{{kBase, 192, 192}}));
  // in any order, and only what touches
  EXPECT_EQ(good(merge_pages({{kBase + 64, 192, 30}, {kBase + 100, 192, 10}, {kBase, 192, 64}}, 10)),
            (Pages{{kBase, 192, 94}, {kBase + 100, 192, 10}}));
}

TEST(Merge, PagesThatTouchOnlyAcrossBlocksStayApart) {
  EXPECT_EQ(good(merge_pages({{kBase, 64, 64}, {kBase + 64, 64, 64}}, 1)), (Pages{{kBase, 0, 128}}));
  // the last bytes of one row and the first of the next: not one page
  const Pages pages = {{kBase + 50, 100, 50}, {kBase, 100, 20}};
  EXPECT_EQ(good(merge_pages(pages, 10)), pages);
}

TEST(Merge, KeepsTheOrderOfTheListNotOfAddresses) {
  const Pages pages = {{kBase + 5000, 64, 64}, {kBase, 64, 64}, {kBase + 2000, 64, 64}};
  EXPECT_EQ(good(merge_pages(pages, 10)), pages);
}

TEST(Merge, OverlapsBetweenAnyBlocksAreRefused) {
  expect_refused(merge_pages({{kBase, 64, 64}, {kBase + 32, 64, 64}}, 2), "overlap");       // in the first block
  expect_refused(merge_pages({{kBase, 64, 64}, {kBase, 64, 32}}, 2), "overlap");            // part of a page
  expect_refused(merge_pages({{kBase, 64, 64}, {kBase + 9 * 64, 64, 64}}, 10), "overlap");  // in the last block
  expect_refused(merge_pages({{kBase, 100, 60}, {kBase + 350, 100, 60}}, 10), "overlap");   // modulo the stride
  expect_refused(merge_pages({{kBase, 100, 40}, {kBase + 390, 100, 40}}, 10), "overlap");   // into the next row
  expect_refused(merge_pages({{kBase, 100, 40}, {kBase + 50, 90, 10}}, 10), "overlap");     // strides differ
  expect_refused(merge_pages({{kBase, 0, 40}, {kBase + 39, 0, 40}}, 1), "overlap");         // a single block
  EXPECT_EQ(good(merge_pages({{kBase, 64, 64}, {kBase + 640, 64, 64}}, 10)).size(), 2u);    // just behind
  EXPECT_EQ(good(merge_pages({{kBase, 100, 50}, {kBase + 350, 100, 50}}, 10)).size(), 2u);  // between the others
}

TEST(Merge, RowsThatRunIntoTheNextAreComparedWithItsFirstAndLastPages) {
  constexpr std::uintptr_t kRow = 1000000;  // a multiple of the stride
  expect_refused(merge_pages({{kRow + 10, 100, 20}, {kRow + 40, 100, 20}, {kRow + 380, 100, 35}}, 10), "overlap");
  expect_refused(merge_pages({{kRow + 80, 100, 30}, {kRow + 40, 100, 20}, {kRow + 305, 100, 10}}, 10), "overlap");
  EXPECT_EQ(good(merge_pages({{kRow + 10, 100, 20}, {kRow + 40, 100, 20}, {kRow + 380, 100, 30}}, 10)).size(), 3u);
  EXPECT_EQ(good(merge_pages({{kRow + 80, 100, 25}, {kRow + 40, 100, 20}, {kRow + 305, 100, 10}}, 10)).size(), 3u);
}

TEST(Merge, RunsWithoutSenseAreRefused) {
  expect_refused(merge_pages({{kBase, 10, 64}}, 2), "block stride of 10");
  expect_refused(merge_pages({{kBase, 64, 0}}, 2), "a page of 0 bytes");
  expect_refused(merge_pages({{kBase, 64, 64}}, 0), "num_blocks is 0");
  expect_refused(merge_pages({{kBase, INT64_MAX / 2, 64}}, 4), "more than 2^63");
}

TEST(Group, BytesOfBlockChunkAndSlot) {
  const GroupGeometry group{{{kBase, 64, 60}, {2 * kBase, 64, 40}}, 10, 3};
  EXPECT_TRUE(check_group(group).ok());
  EXPECT_EQ(group.block_bytes(), 100);
  EXPECT_EQ(group.payload_bytes(), 300);
  EXPECT_EQ(group.slot_bytes(), 4096);
  EXPECT_EQ((GroupGeometry{{{kBase, 4096, 3584}}, 2, 1}.slot_bytes()), 4096);  // the trailer just fits
  EXPECT_EQ((GroupGeometry{{{kBase, 4096, 3585}}, 2, 1}.slot_bytes()), 8192);
}

TEST(Group, WithoutSenseIsRefused) {
  const Pages pages = {{kBase, 64, 64}};
  EXPECT_EQ(check_group({{}, 10, 1}).code(), Code::invalid);
  EXPECT_EQ(check_group({pages, 0, 1}).code(), Code::invalid);
  EXPECT_EQ(check_group({pages, 10, 0}).code(), Code::invalid);
  EXPECT_EQ(check_group({pages, 10, 11}).code(), Code::invalid);
  EXPECT_TRUE(check_group({pages, 10, 10}).ok());
  EXPECT_EQ(check_group({{{kBase, 0, INT64_MAX / 2}}, 10, 3}).code(), Code::invalid);
  EXPECT_EQ(check_group({{{kBase, 0, INT64_MAX - 1000}}, 10, 1}).code(), Code::invalid);
}

}  // namespace
}  // namespace kvo
