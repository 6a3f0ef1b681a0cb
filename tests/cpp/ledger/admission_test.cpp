// Which keys go to disk, and how many a day.
#include "ledger/admission.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <string>

#include "ledger/directory.h"
#include "ledger/key_list.h"

namespace kvo {
namespace {

constexpr int kHost = 16, kDisk = 64;
constexpr double kHour = 3600, kFar = 1e9;

struct Admitting : testing::Test {
  ~Admitting() override { EXPECT_EQ(directory->check().message(), ""); }
  void open(Admission admission, std::int64_t writes_per_day = 0, std::vector<std::int64_t> slot_bytes = {kSlot}) {
    directory = std::make_unique<Directory>(1, admission, "lru", writes_per_day);
    ASSERT_TRUE(directory->open(kHost * kSlot, slot_bytes).ok());
    directory->grow(kHost * kSlot);
    ASSERT_TRUE(directory->open_disk(kDisk * kSlot, 0, 1).ok());
  }
  void report(std::int64_t job, bool ok = true) { (void)directory->report(0, {{job, ok, {}}}); }
  // A request that knows nothing of what is there.
  void store(const KeyList& keys, int group = 0) { report(directory->plan_store(group, keys, kFar).id); }
  std::vector<std::string> demote(double now_seconds = 0, int group = 0) {
    PlannedJob job = directory->plan_demote(group, 1000, now_seconds, kFar);
    report(job.id);
    return job.keys;
  }
  // The disk is full of keys that were used `uses` times each; of the first kHost the last is the next to go.
  void fill_disk(int uses) {
    for (int first = 0; first < kDisk; first += kHost)
      for (int i = 0; i < uses; ++i) store(KeyList(first, first + kHost)), demote();
    ASSERT_EQ(directory->stats().disk.groups[0].slots.free, 0);
  }
  bool on_disk(int key) {
    return directory->states(0, KeyList(key, key + 1), /*on_disk=*/true)[0] == EntryState::ready;
  }
  DirectoryCounters counters() { return directory->stats().counters; }

  std::unique_ptr<Directory> directory;
};

TEST(AdmissionNames, AreThoseOfTheOption) {
  EXPECT_EQ(admission_named("all"), Admission::all);
  EXPECT_EQ(admission_named("second_touch"), Admission::second_touch);
  EXPECT_EQ(admission_named("tinylfu"), Admission::tinylfu);
  EXPECT_EQ(admission_named("some"), std::nullopt);
}

TEST(AdmissionFilter, CountsAKeyInEachGroupAlone) {
  AdmissionFilter filter(Admission::tinylfu);
  filter.set_capacity(1000);
  for (int i = 0; i < 3; ++i) filter.used(0, "key");
  filter.used(0, "other"), filter.used(1, "other");
  EXPECT_TRUE(filter.may_push_out(0, "key", "other"));
  EXPECT_FALSE(filter.may_push_out(0, "other", "key"));
  EXPECT_FALSE(filter.may_push_out(1, "key", "other"));
}

TEST_F(Admitting, TinyLfuTakesAllWhileThereIsRoom) {
  open(Admission::tinylfu);
  fill_disk(1);
  EXPECT_EQ(counters().demoted_keys, kDisk);
  EXPECT_EQ(counters().unadmitted_keys, 0);
}

TEST_F(Admitting, TinyLfuRefusesWhatIsUsedLessThanWhatWouldGo) {
  open(Admission::tinylfu);
  fill_disk(3);
  store(KeyList(100, 101));
  EXPECT_TRUE(demote().empty());
  EXPECT_EQ(counters().unadmitted_keys, 1);
  EXPECT_EQ(directory->stats().waiting_for_disk_keys, 0) << "it does not wait for ever";
  store(KeyList(100, 101));  // a second use, also of a key that is there
  EXPECT_TRUE(demote().empty());
  store(KeyList(100, 101));
  EXPECT_EQ(demote(), KeyList(100, 101).strings) << "as often as what goes";
  EXPECT_FALSE(on_disk(kHost - 1));
  EXPECT_EQ(counters().unadmitted_keys, 2);
  EXPECT_EQ(counters().disk_evicted_keys, 1);
}

TEST_F(Admitting, ARequestsManyLooksAreOneUse) {
  open(Admission::tinylfu);
  fill_disk(3);
  store(KeyList(100, 101));
  for (int i = 0; i < 10; ++i) (void)directory->lookup(0, KeyList(100, 101));
  store(KeyList(100, 101));  // the same request
  EXPECT_TRUE(demote().empty());
  (void)directory->lookup(0, KeyList(100, 101));
  EXPECT_EQ(demote(), KeyList(100, 101).strings) << "the next one's look is a use, and asks for the disk";
}

TEST_F(Admitting, AMissIsAUse) {
  open(Admission::tinylfu);
  fill_disk(3);
  for (int i = 0; i < 3; ++i) {
    store(KeyList(100, 101));
    EXPECT_EQ(demote().size(), i < 2 ? 0u : 1u) << i;
    store(KeyList(200 + kHost * i, 200 + kHost * (i + 1)));  // pushes it out of host memory, and is refused
    EXPECT_TRUE(demote().empty());
  }
}

struct DiskHit : Admitting, testing::WithParamInterface<bool> {};
INSTANTIATE_TEST_SUITE_P(PromotedOrComputed, DiskHit, testing::Values(true, false));

TEST_P(DiskHit, IsOneUseHoweverItGoesOn) {
  open(Admission::tinylfu);
  fill_disk(2);
  store(KeyList(300, 300 + kHost)), demote();
  const KeyList key(kDisk - 1, kDisk);  // it is used once more
  EXPECT_EQ(directory->lookup(0, key).disk, 1);
  if (GetParam()) {
    report(directory->plan_promote(0, key, kFar).id);
    EXPECT_EQ(directory->lookup(0, key).host, 1);
  }
  store(key);
  // All others go; then a key with as many uses as it has, 3, and before that with one less.
  for (int i = 0; i < 2; ++i) store(KeyList(400, 400 + kHost - 1));
  ASSERT_EQ(demote().size(), kHost - 1u);
  for (int first = 500; first < 500 + 3 * kHost; first += kHost)
    for (int i = 0; i < 2; ++i) store(KeyList(first, first + kHost)), demote();
  ASSERT_EQ(directory->stats().counters.disk_evicted_keys, kDisk - 1);
  ASSERT_TRUE(on_disk(kDisk - 1));
  for (int i = 0; i < 2; ++i) store(KeyList(600, 601));
  EXPECT_TRUE(demote().empty());
  store(KeyList(600, 601));
  EXPECT_EQ(demote().size(), 1u);
  EXPECT_FALSE(on_disk(kDisk - 1));
}

TEST_F(Admitting, StoringAKeyAgainKeepsItOnDisk) {
  open(Admission::all);
  fill_disk(1);
  store(KeyList(kHost - 1, kHost));  // the next to go from the disk; host memory had lost it
  store(KeyList(100, 101));
  EXPECT_EQ(demote().size(), 1u);
  EXPECT_TRUE(on_disk(kHost - 1));
  EXPECT_FALSE(on_disk(kHost - 2));
}

TEST_F(Admitting, RoomInAnExtentThatIsNobodysYetIsRoom) {
  open(Admission::tinylfu, 0, {kSlot, kSlot});
  for (int key = 0; key < kDisk && directory->stats().disk.free_extents > 0; ++key) {
    const int uses = std::max(1, 6 - key / 4);  // fewer than what would go
    for (int i = 0; i < uses; ++i) store(KeyList(key, key + 1), key % 2);
    demote(0, key % 2);
  }
  EXPECT_EQ(directory->stats().disk.free_extents, 0);
  EXPECT_EQ(counters().unadmitted_keys, 0);
}

TEST_F(Admitting, SecondTouchCountsStoringAgain) {
  open(Admission::second_touch);
  store(KeyList(0, 4));
  EXPECT_TRUE(demote().empty());
  store(KeyList(0, 2));
  EXPECT_EQ(demote(), KeyList(0, 2).strings);
  EXPECT_EQ(counters().unadmitted_keys, 0);
}

TEST_F(Admitting, ADaysWritesAreNotExceededAndWhatIsOverIsCounted) {
  open(Admission::all, 24 * 4 * kSlot);
  store(KeyList(0, 6));
  EXPECT_EQ(demote(0), KeyList(0, 4).strings) << "an hour's share";
  EXPECT_EQ(counters().over_budget_keys, 2);
  EXPECT_EQ(directory->stats().waiting_for_disk_keys, 0);
  store(KeyList(10, 11));
  EXPECT_TRUE(demote(kHour / 8).empty());
  store(KeyList(20, 24));
  EXPECT_EQ(demote(kHour).size(), 3u) << "23 of 24 flow in again, the first is what was there at the start";
  EXPECT_EQ(counters().over_budget_keys, 4);
  EXPECT_EQ(counters().demoted_keys, 7);
}

TEST_F(Admitting, NoMoreThanWasAskedForIsOverTheBudget) {
  open(Admission::all, 24 * 4 * kSlot);
  store(KeyList(0, 8));
  for (const int most : {3, 2, 1, 0}) report(directory->plan_demote(0, most, 0, kFar).id);
  EXPECT_EQ(counters().over_budget_keys, 2);
  EXPECT_EQ(demote(kHour), KeyList(6, 8).strings) << "the others could wait";
}

TEST_F(Admitting, ADemotionThatWasNeverSentCostsNothing) {
  open(Admission::all, 24 * 4 * kSlot);
  store(KeyList(0, 4));
  const PlannedJob job = directory->plan_demote(0, 100, 0, kFar);
  ASSERT_EQ(job.keys.size(), 4u);
  directory->forget(0, KeyList(0, 1));
  ASSERT_TRUE(directory->abandon(job.id).ok());
  store(KeyList(10, 16));
  EXPECT_EQ(demote().size(), 4u);
}

TEST_F(Admitting, ABudgetThatHoldsNoSlotIsRefused) {
  directory = std::make_unique<Directory>(1, Admission::all, "lru", 24 * kSlot - 1);
  ASSERT_TRUE(directory->open(kHost * kSlot, {kSlot}).ok());
  EXPECT_NE(directory->open_disk(kDisk * kSlot, 0, 1).message().find("disk_writes_per_day"), std::string::npos);
}

TEST_F(Admitting, AKeyThatWaitedIsCountedOnce) {
  open(Admission::tinylfu, 24 * 8 * kSlot);
  std::uint64_t random = 1;
  for (int step = 0; step < 2000; ++step) {
    random = random * 6364136223846793005 + 1442695040888963407;
    const int first = static_cast<int>(random >> 33) % 500;
    store(KeyList(1000 * step, 1000 * step + first % 7));  // never seen before: each waits once
    if (first % 3 == 0) directory->forget(0, KeyList(1000 * step, 1000 * step + 1));
    if (first % 5 == 0) report(directory->plan_demote(0, first % 11, step * 100.0, kFar).id, first % 10 != 0);
    const DirectoryCounters c = counters();
    ASSERT_EQ(c.demoted_keys + c.undemoted_keys + c.unadmitted_keys + c.over_budget_keys + c.failed_keys +
                  directory->stats().waiting_for_disk_keys,
              c.stored_keys);
  }
  EXPECT_GT(std::min({counters().demoted_keys, counters().undemoted_keys, counters().over_budget_keys}), 0);
}

}  // namespace
}  // namespace kvo
