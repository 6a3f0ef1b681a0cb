#include "transfer/path_selector.h"

#include <gtest/gtest.h>

namespace kvo {
namespace {

constexpr Direction kLoad = Direction::load;

// kernel: 10 us + 1 us a span of 4 KiB, 2 us of 8 KiB; staged: 60 us + half of that.
PathTable table() {
  return PathTable({{kLoad, 4096, 10, Path::kernel, 20e-6},
                    {kLoad, 4096, 1000, Path::kernel, 1010e-6},
                    {kLoad, 8192, 10, Path::kernel, 30e-6},
                    {kLoad, 8192, 1000, Path::kernel, 2010e-6},
                    {kLoad, 4096, 10, Path::staged, 65e-6},
                    {kLoad, 4096, 1000, Path::staged, 560e-6}});
}

std::vector<PathCost> both(std::int64_t bytes, std::int64_t spans) {
  return {{Path::dma, bytes, spans}, {Path::kernel, bytes, spans}, {Path::staged, bytes, spans}};
}

TEST(PathTable, LinearBetweenItsRowsAndBeyondThem) {
  const PathTable paths = table();
  EXPECT_NEAR(*paths.seconds(kLoad, Path::kernel, 4096, 500), 510e-6, 1e-9);
  EXPECT_NEAR(*paths.seconds(kLoad, Path::kernel, 6144, 100), 10e-6 + 150e-6, 1e-9);
  EXPECT_NEAR(*paths.seconds(kLoad, Path::kernel, 16384, 100), 10e-6 + 400e-6, 1e-9);
  EXPECT_NEAR(*paths.seconds(kLoad, Path::kernel, 512, 100), 110e-6, 1e-9);
  EXPECT_FALSE(paths.seconds(kLoad, Path::dma, 4096, 1).has_value());
  EXPECT_FALSE(paths.seconds(Direction::store, Path::kernel, 4096, 1).has_value());
}

TEST(PathTable, BetweenTwoCountsOnlyThoseTwoMatter) {
  const PathTable paths({{kLoad, 4096, 10, Path::staged, 20e-6},
                         {kLoad, 4096, 100, Path::staged, 56e-6},
                         {kLoad, 4096, 1000, Path::staged, 956e-6}});
  const auto us = [&](std::int64_t spans) { return *paths.seconds(kLoad, Path::staged, 4096, spans) * 1e6; };
  EXPECT_NEAR(us(55), 38, 1e-3);
  EXPECT_NEAR(us(550), 506, 1e-3);
  EXPECT_NEAR(us(2000), 1956, 1e-3);
  EXPECT_NEAR(us(5), 18, 1e-3);
}

TEST(PathTable, RowsOutOfOrderOrWithOnePointAreFine) {
  const PathTable one({{kLoad, 4096, 100, Path::dma, 1e-3}});
  EXPECT_NEAR(*one.seconds(kLoad, Path::dma, 4096, 200), 2e-3, 1e-9);
  const PathTable falling({{kLoad, 4096, 1000, Path::dma, 1e-6}, {kLoad, 4096, 10, Path::dma, 2e-6}});
  EXPECT_NEAR(*falling.seconds(kLoad, Path::dma, 4096, 5000), 2e-6, 1e-9);
}

TEST(PathSelector, TakesTheFastestAndSaysWhy) {
  PathSelector selector(kLoad);
  selector.set_table(table());
  EXPECT_EQ(selector.choose(both(4096, 10), {}).path, Path::kernel);
  const PathChoice large = selector.choose(both(4096, 1000), {});
  EXPECT_EQ(large.path, Path::staged);
  EXPECT_EQ(explain(large, true), "auto: staged 0.56 ms, kernel 1.01 ms for 1000 pages of 4096 bytes");
  EXPECT_EQ(selector.choose(both(4096, 1000), Path::dma).path, Path::dma);
  EXPECT_EQ(explain(selector.choose(both(4096, 1000), Path::dma), true), "asked for");
}

TEST(PathSelector, WithoutATableTheFirstUsableOne) {
  PathSelector selector(kLoad);
  const PathChoice choice = selector.choose(both(4096, 1000), {});
  EXPECT_EQ(choice.path, Path::dma);
  EXPECT_EQ(choice.reason, PathChoice::Reason::only);
  selector.learn(choice, 1.0);  // nothing was predicted: nothing is learnt
}

TEST(PathSelector, APathFarUnderItsCellIsDemotedAndTriedAgainLater) {
  PathSelector selector(kLoad);
  selector.set_table(table());
  PathChoice choice;
  int slow = 0;
  while ((choice = selector.choose(both(4096, 1000), {})).path == Path::staged && slow < 1000)
    selector.learn(choice, 3e-3), ++slow;
  EXPECT_EQ(choice.path, Path::kernel);
  EXPECT_GT(slow, 3);  // not for one slow transfer
  EXPECT_LT(slow, 100);
  int kernels = 0;
  while ((choice = selector.choose(both(4096, 1000), {})).path == Path::kernel && kernels < 10000)
    selector.learn(choice, choice.predicted_seconds), ++kernels;
  EXPECT_EQ(choice.path, Path::staged);
  EXPECT_GT(kernels, 10);
}

TEST(PathSelector, ABusyLinkDemotesNothing) {
  PathSelector selector(kLoad);
  selector.set_table(table());
  for (int i = 0; i < 1000; ++i) {
    const PathChoice choice = selector.choose(both(4096, 1000), {});
    ASSERT_EQ(choice.path, Path::staged);
    selector.learn(choice, 1.9 * choice.predicted_seconds);
  }
}

}  // namespace
}  // namespace kvo
