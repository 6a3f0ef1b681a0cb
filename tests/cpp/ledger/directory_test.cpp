#include "ledger/directory.h"

#include <gtest/gtest.h>

#include <string>
#include <thread>
#include <vector>

namespace kvo {
namespace {

constexpr std::int64_t kSlot = 4096;

std::string key(int i) { return "key of thirty-two bytes #" + std::to_string(1000000 + i); }

// Owns the strings that Directory::Keys only views.
struct Keys {
  Keys(int first, int end) {
    for (int i = first; i < end; ++i) strings.push_back(key(i));
    views.assign(strings.begin(), strings.end());
  }
  operator Directory::Keys() const { return views; }
  std::vector<std::string> strings;
  std::vector<std::string_view> views;
};

std::vector<FinishedJob> report(Directory& directory, int rank, std::int64_t job, bool ok = true) {
  return directory.report(rank, {{job, ok, {}}});
}

std::vector<std::int64_t> store(Directory& directory, const Keys& keys, int group = 0) {
  const PlannedJob job = directory.plan_store(group, keys, 10.0);
  report(directory, 0, job.id);
  return job.slots;
}

struct OneRank : testing::Test {
  OneRank() { open(8); }
  ~OneRank() override { EXPECT_EQ(directory->check().message(), ""); }
  void open(int slots, int ranks = 1) {
    directory = std::make_unique<Directory>(ranks);
    EXPECT_TRUE(directory->open(slots * kSlot, {kSlot}).ok());
    directory->grow(slots * kSlot);
  }
  std::unique_ptr<Directory> directory;
};

TEST_F(OneRank, MissesUntilOpened) {
  Directory closed(1);
  EXPECT_EQ(closed.lookup(0, Keys(0, 3)).host, 0);
  EXPECT_EQ(closed.plan_store(0, Keys(0, 3), 1.0).id, 0);
  EXPECT_EQ(closed.stats().counters.dropped_keys, 3);
  EXPECT_FALSE(closed.stats().host.serving);
}

TEST_F(OneRank, RefusesATierWithoutRoomForEachGroup) {
  Directory small(1);
  const Status status = small.open(2 * kSlot - 1, {512, kSlot});
  EXPECT_EQ(status.code(), Code::invalid);
  EXPECT_NE(status.message().find("at least 8192"), std::string::npos) << status.message();
  EXPECT_TRUE(small.open(2 * kSlot, {512, kSlot}).ok());
}

TEST_F(OneRank, VisibleOnlyWhenReported) {
  const PlannedJob job = directory->plan_store(0, Keys(0, 4), 10.0);
  EXPECT_EQ(job.slots, (std::vector<std::int64_t>{0, 1, 2, 3}));
  EXPECT_EQ(directory->lookup(0, Keys(0, 4)).host, 0);
  EXPECT_EQ(directory->states(0, Keys(0, 1))[0], EntryState::filling);
  const auto finished = report(*directory, 0, job.id);
  ASSERT_EQ(finished.size(), 1u);
  EXPECT_TRUE(finished[0].ok);
  EXPECT_EQ(directory->lookup(0, Keys(0, 5)).host, 4);
}

TEST_F(OneRank, EvictsLeastRecentlyUsedEndOfPrefixFirst) {
  store(*directory, Keys(0, 4));
  store(*directory, Keys(4, 8));
  EXPECT_EQ(directory->lookup(0, Keys(0, 4)).host, 4);
  store(*directory, Keys(8, 11));  // key 7, 6, 5 go: the end of the prefix that was not looked up
  EXPECT_EQ(directory->lookup(0, Keys(4, 8)).host, 1);
  EXPECT_EQ(directory->lookup(0, Keys(0, 4)).host, 4);
  EXPECT_EQ(directory->stats().counters.evicted_keys, 3);
}

TEST_F(OneRank, NeverEvictsFillingReadHeldOrTouched) {
  store(*directory, Keys(0, 6));
  const PlannedJob load = directory->plan_load(0, Keys(0, 2), 10.0);
  const auto [hold, held] = directory->hold(0, Keys(2, 4));
  EXPECT_EQ(held, 2);
  directory->plan_store(0, Keys(6, 7), 10.0);                          // filling
  const PlannedJob job = directory->plan_store(0, Keys(4, 12), 10.0);  // touches 4, 5; 7 gets the last free slot
  EXPECT_EQ(job.accepted, (std::vector<std::int64_t>{3}));
  EXPECT_EQ(directory->stats().counters.dropped_keys, 4);
  EXPECT_EQ(directory->stats().counters.evicted_keys, 0);
  EXPECT_EQ(directory->lookup(0, Keys(0, 6)).host, 6);

  directory->release(hold);
  directory->release(hold);  // idempotent
  report(*directory, 0, load.id);
  EXPECT_EQ(directory->plan_store(0, Keys(20, 24), 10.0).slots.size(), 4u);
}

TEST_F(OneRank, KeyTwiceInOneCallGetsOneSlot) {
  Keys keys(0, 2);
  keys.views.push_back(keys.views[0]);
  EXPECT_EQ(directory->plan_store(0, keys, 10.0).accepted, (std::vector<std::int64_t>{0, 1}));
  EXPECT_EQ(directory->stats().counters.skipped_keys, 1);
}

TEST_F(OneRank, FailedLoadDropsItsKeysAndFreesAfterTheLastReader) {
  const auto slots = store(*directory, Keys(0, 1));
  const PlannedJob first = directory->plan_load(0, Keys(0, 1), 10.0);
  const PlannedJob second = directory->plan_load(0, Keys(0, 1), 10.0);
  EXPECT_FALSE(report(*directory, 0, first.id, false)[0].ok);
  EXPECT_EQ(directory->lookup(0, Keys(0, 1)).host, 0);
  EXPECT_EQ(directory->stats().host.groups[0].slots.free, 7);
  EXPECT_NE(directory->plan_store(0, Keys(0, 1), 10.0).slots, slots);  // anew, elsewhere
  report(*directory, 0, second.id);
  EXPECT_EQ(directory->stats().host.groups[0].slots.free, 7);
}

TEST_F(OneRank, ResetMakesOldStoresInvisibleForEver) {
  const PlannedJob old = directory->plan_store(0, Keys(0, 2), 10.0);
  directory->reset();
  const PlannedJob young = directory->plan_store(0, Keys(0, 2), 10.0);
  EXPECT_NE(old.slots, young.slots);
  report(*directory, 0, old.id);
  EXPECT_EQ(directory->lookup(0, Keys(0, 2)).host, 0);
  report(*directory, 0, young.id);
  EXPECT_EQ(directory->lookup(0, Keys(0, 2)).host, 2);
  EXPECT_EQ(directory->stats().host.groups[0].slots.free, 6);
}

TEST_F(OneRank, AbandonUndoesBothKinds) {
  store(*directory, Keys(0, 1));
  EXPECT_TRUE(directory->abandon(directory->plan_store(0, Keys(1, 3), 10.0).id).ok());
  EXPECT_TRUE(directory->abandon(directory->plan_load(0, Keys(0, 1), 10.0).id).ok());
  EXPECT_EQ(directory->lookup(0, Keys(0, 1)).host, 1);
  EXPECT_EQ(directory->stats().host.groups[0].slots.free, 7);
  EXPECT_EQ(directory->stats().counters.dropped_keys, 2);
  EXPECT_EQ(directory->abandon(99).code(), Code::invalid);
}

TEST_F(OneRank, TwoRanksMustBothReport) {
  open(8, 2);
  const PlannedJob job = directory->plan_store(0, Keys(0, 2), 10.0);
  EXPECT_TRUE(report(*directory, 1, job.id).empty());
  EXPECT_TRUE(report(*directory, 1, job.id).empty());  // twice: ignored
  EXPECT_EQ(directory->lookup(0, Keys(0, 2)).host, 0);
  EXPECT_EQ(directory->abandon(job.id).code(), Code::invalid);
  EXPECT_EQ(report(*directory, 0, job.id).size(), 1u);
  EXPECT_EQ(directory->lookup(0, Keys(0, 2)).host, 2);
  EXPECT_EQ(directory->stats().counters.unknown_reports, 1);
}

TEST_F(OneRank, FailureOnOneRankIsAMissAtOnceAndFreesWhenAllReported) {
  open(8, 2);
  const PlannedJob job = directory->plan_store(0, Keys(0, 2), 10.0);
  EXPECT_TRUE(report(*directory, 0, job.id, false).empty());
  EXPECT_EQ(directory->states(0, Keys(0, 1))[0], EntryState::free);
  EXPECT_EQ(directory->stats().host.groups[0].slots.free, 6);
  EXPECT_FALSE(report(*directory, 1, job.id)[0].ok);
  EXPECT_EQ(directory->stats().host.groups[0].slots.free, 8);
  EXPECT_EQ(directory->lookup(0, Keys(0, 2)).host, 0);
}

TEST_F(OneRank, DeadlineQuarantinesAndLateReportsFree) {
  open(100, 2);
  const PlannedJob job = directory->plan_store(0, Keys(0, 2), 10.0);
  EXPECT_TRUE(directory->expire(9.9).empty());
  const auto given_up = directory->expire(10.0);
  ASSERT_EQ(given_up.size(), 1u);
  EXPECT_FALSE(given_up[0].ok || given_up[0].late);
  EXPECT_TRUE(directory->expire(11.0).empty());
  EXPECT_EQ(directory->stats().host.groups[0].slots.quarantined, 2);
  EXPECT_EQ(directory->stats().host.groups[0].slots.used(), 0);

  const PlannedJob again = directory->plan_store(0, Keys(0, 2), 99.0);
  EXPECT_EQ(again.slots, (std::vector<std::int64_t>{2, 3}));
  report(*directory, 0, job.id);
  const auto late = report(*directory, 1, job.id);
  ASSERT_EQ(late.size(), 1u);
  EXPECT_TRUE(late[0].late && !late[0].ok);
  EXPECT_EQ(directory->states(0, Keys(0, 1))[0], EntryState::filling);  // the new store's, not resurrected
  EXPECT_EQ(directory->stats().host.groups[0].slots.quarantined, 0);
  EXPECT_EQ(directory->stats().counters.late_reports, 2);
}

TEST_F(OneRank, TierIsOffAboveFivePercentQuarantined) {
  open(100);
  store(*directory, Keys(50, 60));
  const PlannedJob five = directory->plan_store(0, Keys(0, 5), 10.0);
  const PlannedJob one = directory->plan_store(0, Keys(5, 6), 11.0);
  directory->expire(10.0);
  EXPECT_FALSE(directory->tier_off());
  EXPECT_EQ(directory->lookup(0, Keys(50, 60)).host, 10);
  directory->expire(11.0);
  EXPECT_TRUE(directory->tier_off());
  EXPECT_EQ(directory->lookup(0, Keys(50, 60)).host, 0);
  EXPECT_EQ(directory->plan_load(0, Keys(50, 60), 99.0).id, 0);
  EXPECT_EQ(directory->hold(0, Keys(50, 60)).second, 0);
  EXPECT_EQ(directory->plan_store(0, Keys(70, 72), 99.0).id, 0);
  EXPECT_EQ(directory->stats().counters.dropped_keys, 2);
  report(*directory, 0, one.id);
  EXPECT_EQ(directory->lookup(0, Keys(50, 60)).host, 10);
  report(*directory, 0, five.id);
}

TEST_F(OneRank, CapacityGrowsByReadyBytes) {
  Directory growing(1);
  ASSERT_TRUE(growing.open(10 * kSlot, {kSlot}).ok());
  EXPECT_EQ(growing.plan_store(0, Keys(0, 1), 10.0).id, 0);
  growing.grow(3 * kSlot + 5);
  EXPECT_EQ(growing.plan_store(0, Keys(0, 9), 10.0).slots, (std::vector<std::int64_t>{0, 1, 2}));
  growing.grow(2 * kSlot);  // never less
  growing.grow(5 * kSlot);
  EXPECT_EQ(growing.plan_store(0, Keys(3, 9), 10.0).slots, (std::vector<std::int64_t>{3, 4}));
  EXPECT_EQ(growing.stats().host.groups[0].slots.capacity, 5);
  EXPECT_EQ(growing.check().message(), "");
}

// 32 small extents or so; the slots of the two groups must never share bytes.
TEST_F(OneRank, ExtentsMoveFromTheRichestGroup) {
  const std::int64_t bytes = 256 * kSlot;
  Directory two(1);
  ASSERT_TRUE(two.open(bytes, {kSlot, 2 * kSlot}).ok());
  two.grow(bytes);
  store(two, Keys(0, 256), 0);
  const ExtentPlan plan = plan_extents(bytes, {kSlot, 2 * kSlot});
  EXPECT_EQ(two.stats().host.free_extents, 0);
  const auto [hold, held] = two.hold(0, Keys(0, 250));
  EXPECT_EQ(held, 250);
  EXPECT_EQ(two.plan_store(1, Keys(0, 1), 10.0).id, 0) << "every extent has a held slot but part of the last";
  two.release(hold);
  const PlannedJob job = two.plan_store(1, Keys(0, 1), 10.0);
  ASSERT_EQ(job.slots.size(), 1u);
  EXPECT_EQ(two.stats().counters.evicted_keys, plan.slots_per_extent(0));
  EXPECT_EQ(two.stats().host.groups[0].slots.capacity, 256 - plan.slots_per_extent(0));
  EXPECT_EQ(two.check().message(), "");
}

TEST_F(OneRank, ThreadsDoNotBreakIt) {
  open(64);
  std::vector<std::thread> threads;
  for (int t = 0; t < 4; ++t) {
    threads.emplace_back([&, t] {
      for (int round = 0; round < 300; ++round) {
        const Keys keys(t * 16 + round % 7, t * 16 + 24);
        const PlannedJob stored = directory->plan_store(0, keys, 10.0);
        const auto hold = directory->hold(0, keys).first;
        const PlannedJob loaded = directory->plan_load(0, keys, 10.0);
        if (stored.id) report(*directory, 0, stored.id, round % 5 != 0);
        if (loaded.id) report(*directory, 0, loaded.id);
        directory->release(hold);
        if (round % 50 == t) directory->reset();
      }
    });
  }
  for (std::thread& thread : threads) thread.join();
  const DirectoryStats stats = directory->stats();
  EXPECT_EQ(stats.jobs_in_flight, 0);
  EXPECT_EQ(stats.holds, 0);
  EXPECT_EQ(stats.host.groups[0].slots.used(), stats.host.groups[0].ready_keys);
}

}  // namespace
}  // namespace kvo
