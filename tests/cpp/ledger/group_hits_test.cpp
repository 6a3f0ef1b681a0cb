#include "ledger/group_hits.h"

#include <gtest/gtest.h>

#include <string_view>
#include <vector>

namespace kvo {
namespace {

// `there`: a character a chunk, 'x' for those that are.
GroupChunks group(std::string_view there, std::int64_t tokens_per_chunk, std::int64_t window_tokens = kWholePrefix) {
  GroupChunks made{{tokens_per_chunk, window_tokens}, {}};
  for (const char chunk : there) made.there.push_back(chunk == 'x');
  return made;
}

std::int64_t hit(std::vector<GroupChunks> groups, std::int64_t start_tokens = 0) {
  return hit_end_tokens(groups, start_tokens);
}

TEST(GroupHits, FullAttentionNeedsEverythingUpToTheEnd) {
  EXPECT_EQ(hit({group("xxx", 4)}), 12);
  EXPECT_EQ(hit({group("xx.x", 4)}), 8);
  EXPECT_EQ(hit({group(".xxx", 4)}), 0);
  EXPECT_EQ(hit({group("xxxx", 4), group("xxx", 4)}), 12);
  EXPECT_EQ(hit({group("xxxx", 4), group("", 4)}), 0);
  EXPECT_EQ(hit({}), 0);
}

TEST(GroupHits, RecurrentLayersNeedTheStateAtTheEnd) {
  EXPECT_EQ(hit({group("xxxx", 4), group("...x", 4, 1)}), 16);
  EXPECT_EQ(hit({group("xxxx", 4), group("x.x.", 4, 1)}), 12) << "missing at the end, there before it";
  EXPECT_EQ(hit({group("xx.x", 4), group("...x", 4, 1)}), 0) << "there only behind a hole of the other group";
  EXPECT_EQ(hit({group("xxxx", 4), group("....", 4, 1)}), 0);
}

TEST(GroupHits, ASlidingWindowNeedsWhatItTouches) {
  EXPECT_EQ(hit({group("..xx", 4, 8)}), 16);
  EXPECT_EQ(hit({group("..xx", 4, 9)}), 0) << "a token of the second chunk is in the window";
  EXPECT_EQ(hit({group("xx.xx", 4, 8)}), 20);
  EXPECT_EQ(hit({group("xx.x", 4, 8)}), 8);
  EXPECT_EQ(hit({group("x..", 4, 9)}), 4) << "a window longer than the hit";
  EXPECT_EQ(hit({group("...", 4, 0), group("xx", 4)}), 8) << "a window of nothing";
}

TEST(GroupHits, AHitEndsWhereAChunkOfEveryGroupEnds) {
  EXPECT_EQ(hit({group("xxxxxxx", 4), group("xxxxx", 6)}), 24);
  EXPECT_EQ(hit({group("xxxxx", 4), group("xxxxx", 6)}), 12);
  EXPECT_EQ(hit({group("xx", 4), group("x", 6)}), 0);
  EXPECT_EQ(hit({group("xxx", (1ll << 31) - 1), group("xxx", 1ll << 31), group("xxx", (1ll << 31) - 3)}), 0);
}

TEST(GroupHits, WhatTheCallerHasIsNotNeeded) {
  // Chunks are counted from the one that token 10 lies in: 8 to 11, and 6 to 11.
  EXPECT_EQ(hit({group("xxxx", 4), group("xxx", 6)}, 10), 24);
  EXPECT_EQ(hit({group("x", 4), group("x", 6)}, 10), 12);
  EXPECT_EQ(hit({group(".xx", 4), group("xxx", 6)}, 10), 10) << "no end behind the start: the start";
  EXPECT_EQ(hit({group("xx", 4, 100)}, 8), 16) << "of its window only what lies behind the start";
}

// Every end is tried, and each time the hole is as far before it as the window allows: quadratic work would not end.
TEST(GroupHits, ALongPrefixIsReadOnce) {
  constexpr std::int64_t kChunks = 2'000'000;
  std::vector<bool> there(kChunks, true);
  there[0] = there[kChunks / 2] = false;
  EXPECT_EQ(hit({{{1, kChunks / 2}, there}, {{1, kWholePrefix}, std::vector<bool>(kChunks, true)}}), 0);
}

}  // namespace
}  // namespace kvo
