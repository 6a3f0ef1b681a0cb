#include "ledger/write_budget.h"

#include <gtest/gtest.h>

#include <random>
#include <vector>

namespace kvo {
namespace {

constexpr double kHour = 3600, kDay = 24 * kHour;
constexpr std::int64_t kSlot = 1000, kPerHour = 8 * kSlot, kPerDay = 24 * kPerHour;

// How many slots it lets pass at once.
int write(WriteBudget& budget, double now_seconds, int most = 1000) {
  int written = 0;
  for (; written < most && budget.allows(kSlot, now_seconds); ++written) budget.spend(kSlot);
  return written;
}

TEST(WriteBudget, NoneIsNoLimit) {
  WriteBudget budget(0);
  EXPECT_EQ(write(budget, 0), 1000);
  EXPECT_TRUE(budget.check(std::int64_t{1} << 40).ok());
}

TEST(WriteBudget, HoldsAnHoursShareAndNoMore) {
  WriteBudget budget(kPerDay);
  EXPECT_EQ(write(budget, 5e6), 8) << "full at the start, whatever the clock says then";
  EXPECT_EQ(write(budget, 5e6 + 10 * kDay), 8);
}

TEST(WriteBudget, OneThatRanDryOpensAtAQuarter) {
  WriteBudget budget(kPerDay);
  EXPECT_EQ(write(budget, 0), 8);
  const double slot_seconds = kDay * kSlot / (kPerDay - kPerHour);
  EXPECT_EQ(write(budget, 1.9 * slot_seconds), 0);
  EXPECT_EQ(write(budget, 2.1 * slot_seconds), 2);
  EXPECT_EQ(write(budget, 4.2 * slot_seconds, 1), 1);
  EXPECT_EQ(write(budget, 4.2 * slot_seconds, 1), 1) << "it has not run dry again: the last one may go";
}

TEST(WriteBudget, NoDaySeesMore) {
  std::mt19937 random(7);
  for (int run = 0; run < 20; ++run) {
    WriteBudget budget(kPerDay);
    std::vector<std::pair<double, int>> writes;
    double now = 0;
    while (now < 4 * kDay) {
      writes.emplace_back(now, write(budget, now, std::uniform_int_distribution(1, 20)(random)));
      now += std::exponential_distribution<>(1 / (kHour * (1 + run % 4) / 4))(random);
    }
    std::int64_t total = 0;
    for (std::size_t first = 0; first < writes.size(); ++first) {
      std::int64_t in_a_day = 0;
      for (std::size_t i = first; i < writes.size() && writes[i].first - writes[first].first <= kDay; ++i)
        in_a_day += writes[i].second * kSlot;
      ASSERT_LE(in_a_day, kPerDay);
      total += writes[first].second * kSlot;
    }
    EXPECT_GT(total, kPerDay) << "it does not starve either";
  }
}

TEST(WriteBudget, AClockThatGoesBackGivesNothing) {
  WriteBudget budget(kPerDay);
  EXPECT_EQ(write(budget, kDay), 8);
  EXPECT_EQ(write(budget, 0), 0);
  EXPECT_EQ(write(budget, kDay), 0) << "nor does its way back";
}

TEST(WriteBudget, WhatWasNotWrittenComesBack) {
  WriteBudget budget(kPerDay);
  EXPECT_EQ(write(budget, 0, 7), 7);
  budget.give_back(3 * kSlot);
  EXPECT_EQ(write(budget, 0), 4);
  budget.give_back(100 * kSlot);
  EXPECT_EQ(write(budget, 0), 8) << "never more than it holds";
}

TEST(WriteBudget, OneThatCouldNeverWriteASlotIsRefused) {
  const WriteBudget budget(kPerDay);
  EXPECT_TRUE(budget.check(kPerHour).ok());
  const Status refused = budget.check(kPerHour + 1);
  EXPECT_EQ(refused.code(), Code::invalid);
  EXPECT_NE(refused.message().find("disk_writes_per_day = 192000"), std::string::npos);
  EXPECT_NE(refused.message().find("192024"), std::string::npos) << refused.message();
}

}  // namespace
}  // namespace kvo
