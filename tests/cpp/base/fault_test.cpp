#include "base/fault.h"

#include <gtest/gtest.h>

#include <atomic>
#include <thread>
#include <vector>

namespace kvo {
namespace {

struct Fault : testing::Test {
  void TearDown() override { fault::disarm_all(); }
};

TEST_F(Fault, SkipsThenFiresThenStops) {
  fault::arm("copy", 2, 3);
  std::string fired;
  for (int pass = 0; pass < 8; ++pass) fired += fault::fires("copy") ? '1' : '0';
  EXPECT_EQ(fired, "00111000");
  EXPECT_EQ(fault::armed_count, 0);
}

TEST_F(Fault, PointsDoNotDisturbEachOther) {
  fault::arm("a", 0, 1);
  fault::arm("b", 1, 1);
  EXPECT_FALSE(fault::fires("c"));
  EXPECT_FALSE(fault::fires("b"));
  EXPECT_TRUE(fault::fires("a"));
  EXPECT_TRUE(fault::fires("b"));
}

TEST_F(Fault, ArmingAgainReplacesAndZeroDisarms) {
  fault::arm("a", 5, 1);
  fault::arm("a", 0, 1);
  EXPECT_EQ(fault::armed_count, 1);
  EXPECT_TRUE(fault::fires("a"));
  fault::arm("a", 0, 1);
  fault::arm("a", 0, 0);
  EXPECT_EQ(fault::armed_count, 0);
  EXPECT_FALSE(fault::fires("a"));
}

TEST_F(Fault, FiresExactlyCountTimesOverThreads) {
  fault::arm("a", 10, 25);
  std::atomic<int> fired{0};
  std::vector<std::thread> threads;
  for (int i = 0; i < 4; ++i) {
    threads.emplace_back([&] {
      for (int pass = 0; pass < 100; ++pass) fired += fault::fires("a");
    });
  }
  for (std::thread& thread : threads) thread.join();
  EXPECT_EQ(fired, 25);
}

}  // namespace
}  // namespace kvo
