// Whatever goes wrong with a record is a miss of that record, and a count.
#include <thread>

#include "storage/disk_tier_fixture.h"

namespace kvo {
namespace {

struct DiskTierFaults : DiskTierTest, testing::WithParamInterface<const char*> {
  void SetUp() override {
    if (const std::string why = why_not(GetParam()); !why.empty()) GTEST_SKIP() << why;
  }
  DiskTierFaults() { options.io = GetParam(), options.depth = 2; }
  std::int64_t promotions(DiskOutcome outcome) { return tier->stats().promotions[static_cast<std::size_t>(outcome)]; }
};

TEST_P(DiskTierFaults, ARecordThatFailsIsAMissAndTheOthersAreNot) {
  const std::pair<const char*, DiskOutcome> faults[] = {
      {"io_eio", DiskOutcome::io_error},         {"io_enospc", DiskOutcome::io_error},
      {"io_erofs", DiskOutcome::io_error},       {"io_estale", DiskOutcome::io_error},
      {"io_submit", DiskOutcome::io_error},      {"io_long", DiskOutcome::io_error},
      {"io_end", DiskOutcome::cut_short},        {"record_payload", DiskOutcome::checksum},
      {"record_padding", DiskOutcome::checksum}, {"record_trailer", DiskOutcome::checksum}};
  open();
  demote(range(0, 8));
  for (const auto& [point, outcome] : faults) {
    memory.clear();
    fault::arm(point, 3, 1);
    const DiskJobResult result = promote(range(0, 8));
    ASSERT_EQ(result.failed.size(), 1u) << point;
    EXPECT_NE(result.error, "") << point;
    EXPECT_EQ(result.bytes, 7 * kSlot);
    EXPECT_EQ(promotions(outcome), 1) << point;
    for (std::int64_t slot = 0; slot < 8; ++slot) {
      if (slot != result.failed[0]) expect_payload(slot);
    }
    open();  // counts from nothing
  }
}

TEST_P(DiskTierFaults, AQueueThatBreaksTellsAllThatIsNotOnItsWay) {
  open();
  fault::arm("io_submit", 0, 1), fault::arm("io_broken", 0, 1);  // nothing is left with the kernel
  EXPECT_EQ(demote(range(0, 4)).failed, range(0, 4));
  EXPECT_EQ(tier->submit(job(DiskJobKind::demote, 3, {0})).code(), Code::unsupported);
  EXPECT_TRUE(tier->close(soon()).ok());
}

TEST_P(DiskTierFaults, AWriteThatFailsIsToldAndTheSlotCanBeWrittenAgain) {
  open();
  for (const char* point : {"io_eio", "io_enospc", "io_erofs", "io_end", "io_submit"}) {
    fault::arm(point, 2, 1);
    const DiskJobResult result = demote(range(0, 4));
    EXPECT_EQ(result.failed.size(), 1u) << point;
    EXPECT_NE(result.error.find("writing to " + path()), std::string::npos) << result.error;
    EXPECT_EQ(demote(result.failed).failed, Slots()) << point;
  }
  memory.clear();
  EXPECT_EQ(promote(range(0, 4)).failed, Slots());
  for (std::int64_t slot = 0; slot < 4; ++slot) expect_payload(slot);
}

TEST_P(DiskTierFaults, ShortInterruptedAndSlowOnesMakeIt) {
  open();
  for (const char* point : {"io_short", "io_odd", "io_eintr", "io_eagain", "io_delay"}) {
    fault::arm(point, 1, 3);
    EXPECT_EQ(demote(range(0, 4)).failed, Slots()) << point;
    memory.clear();
    fault::arm(point, 1, 3);
    EXPECT_EQ(promote(range(0, 4)).failed, Slots()) << point;
    for (std::int64_t slot = 0; slot < 4; ++slot) expect_payload(slot);
  }
}

// The disk says it has written and has not, or has somewhere else: what is found there is a miss.
TEST_P(DiskTierFaults, ALostAndAMisdirectedWriteAreSeen) {
  sequence = 7;
  open();
  demote(range(0, 4));
  sequence = 8;
  fault::arm("io_lost_write", 0, 1);
  EXPECT_EQ(demote({1}).failed, Slots());
  EXPECT_EQ(promote({1}).failed, Slots{0});
  EXPECT_EQ(promotions(DiskOutcome::stale), 1);
  EXPECT_EQ(demote({1}).failed, Slots());
  EXPECT_EQ(promote({1}).failed, Slots());
  fault::arm("io_misdirect", 0, 1);
  demote({2});  // goes to slot 3
  EXPECT_EQ(promote({2, 3}).failed, (Slots{0, 1}));
  EXPECT_EQ(promotions(DiskOutcome::stale), 2);
  EXPECT_EQ(promotions(DiskOutcome::identity), 1);
}

TEST_P(DiskTierFaults, WhatWasChangedOnTheDiskIsAMiss) {
  open();
  demote(range(0, 8));
  const std::pair<std::int64_t, std::int64_t> flips[] = {{0, 0},           {1, kPayload - 1}, {2, kPayload},
                                                         {3, kSlot - 513}, {4, kSlot - 512},  {5, kSlot - 1}};
  for (const auto& [slot, byte] : flips) {
    on_disk(place(slot), [&](std::vector<char>& record) { record[byte] ^= 1; });
  }
  EXPECT_EQ(promote(range(0, 8)).failed.size(), 6u);
  EXPECT_EQ(promotions(DiskOutcome::checksum), 6);
  std::vector<char> whole;
  on_disk(place(6), [&](std::vector<char>& record) { whole = record; });
  on_disk(place(7), [&](std::vector<char>& record) { record = whole; });
  EXPECT_EQ(promote({6, 7}).failed, Slots{1});
  EXPECT_EQ(promotions(DiskOutcome::identity), 1);
}

TEST_P(DiskTierFaults, AFileThatWasCutOrRemovedIsMisses) {
  open();
  demote(range(0, 8));
  ASSERT_EQ(truncate(path().c_str(), place(4)), 0);
  auto failed = promote(range(0, 8)).failed;
  std::sort(failed.begin(), failed.end());
  EXPECT_EQ(failed, (Slots{4, 5, 6, 7}));
  EXPECT_EQ(promotions(DiskOutcome::cut_short), 4);
  std::filesystem::remove(path());
  open();
  EXPECT_EQ(promote(range(0, 8)).failed.size(), 8u);
}

TEST_P(DiskTierFaults, ThreadsEndWhenTheyAreToldTo) {
  options.threads = 2;
  open();
  fault::arm("io_delay", 0, 100);
  ASSERT_TRUE(tier->submit(job(DiskJobKind::demote, 1, {0, 1, 2, 3, 4, 5, 6, 7})).ok());
  while (tier->stats().waiting_demotions == 8) std::this_thread::yield();
  EXPECT_EQ(tier->close(std::chrono::steady_clock::now()).code(), Code::timeout);
  fault::disarm_all();
  EXPECT_TRUE(tier->close(soon()).ok());
  const auto ended = results();
  ASSERT_EQ(ended.size(), 1u);
  EXPECT_GT(ended.at(1).failed.size(), 0u);
  EXPECT_EQ(tier->submit(job(DiskJobKind::demote, 2, {0})).code(), Code::closed);
}

INSTANTIATE_TEST_SUITE_P(Io, DiskTierFaults, testing::Values("io_uring", "threads"),
                         [](const auto& info) { return std::string(info.param); });

}  // namespace
}  // namespace kvo
