#include <gtest/gtest.h>

#include <string>

#include "ledger/directory.h"
#include "ledger/key_list.h"

namespace kvo {
namespace {

struct TwoTiers : testing::Test {
  TwoTiers() { open(4, 8); }
  ~TwoTiers() override { EXPECT_EQ(directory->check().message(), ""); }
  void open(int host_slots, int disk_slots, int ranks = 1, Admission admission = Admission::all) {
    directory = std::make_unique<Directory>(ranks, admission);
    EXPECT_TRUE(directory->open(host_slots * kSlot, {kSlot}).ok());
    directory->grow(host_slots * kSlot);
    EXPECT_TRUE(directory->open_disk(disk_slots * kSlot, 0, 1).ok());
  }
  void report(std::int64_t job, bool ok = true, std::vector<std::int64_t> failed = {},
              std::vector<std::int64_t> untried = {}) {
    (void)directory->report(0, {{job, ok, std::move(failed), std::move(untried)}});
  }
  // It goes to disk, and the disk does not come back from that.
  PlannedJob hang(const KeyList& keys) {
    store(keys);
    PlannedJob job = directory->plan_demote(0, 100, 0, 10);
    EXPECT_EQ(directory->expire(11).size(), 1u);
    return job;
  }
  std::int64_t quarantined_in_host() const { return directory->stats().host.groups[0].slots.quarantined; }
  void store(const KeyList& keys) { report(directory->plan_store(0, keys, 10).id); }
  PlannedJob demote(std::int64_t most = 100) {
    PlannedJob job = directory->plan_demote(0, most, 0, 10);
    report(job.id);
    return job;
  }
  std::unique_ptr<Directory> directory;
};

TEST_F(TwoTiers, WhatIsStoredGoesToDiskAndComesBack) {
  store(KeyList(0, 3));
  const PlannedJob job = demote();
  EXPECT_EQ(job.keys, KeyList(0, 3).strings);
  EXPECT_EQ(job.disk_slots, (std::vector<std::int64_t>{0, 1, 2}));
  EXPECT_EQ(job.sequence, 1);
  const DiskEvents events = directory->take_disk_events();
  EXPECT_TRUE(events.freed.empty());
  ASSERT_EQ(events.committed.size(), 3u);
  EXPECT_EQ(events.committed[2].key, KeyList(2, 3).strings[0]);
  EXPECT_EQ(events.committed[2].sequence, 3);
  EXPECT_TRUE(directory->take_disk_events().committed.empty());
  store(KeyList(10, 14));  // host memory has other keys now
  EXPECT_EQ(directory->lookup(0, KeyList(0, 4)).host, 0);
  EXPECT_EQ(directory->lookup(0, KeyList(0, 4)).disk, 3);
  const PlannedJob back = directory->plan_promote(0, KeyList(0, 4), 10);
  EXPECT_EQ(back.accepted, (std::vector<std::int64_t>{0, 1, 2}));
  EXPECT_EQ(back.disk_slots, job.disk_slots);
  EXPECT_EQ(directory->plan_promote(0, KeyList(0, 3), 10).id, 0) << "one promotion, however many ask";
  report(back.id);
  EXPECT_EQ(directory->lookup(0, KeyList(0, 4)).host, 3);
  EXPECT_EQ(directory->lookup(0, KeyList(0, 4)).disk, 0);
}

TEST_F(TwoTiers, HitsMayAlternateBetweenTheTiers) {
  store(KeyList(0, 4));
  demote();
  store(KeyList(30, 32));  // two of the four leave host memory: the end of the prefix
  const auto hits = directory->lookup(0, KeyList(0, 5));
  EXPECT_EQ(hits.host, 2);
  EXPECT_EQ(hits.disk, 2);
}

TEST_F(TwoTiers, ASlotIsFreedInTheManifestBeforeAnotherKeyIsPlannedThere) {
  for (int i = 0; i < 8; i += 4) store(KeyList(i, i + 4)), demote();
  (void)directory->take_disk_events();
  store(KeyList(8, 9));
  const PlannedJob job = directory->plan_demote(0, 100, 0, 10);
  ASSERT_EQ(job.disk_slots.size(), 1u);
  const DiskEvents events = directory->take_disk_events();
  EXPECT_EQ(events.freed, (std::vector<SlotName>{{0, job.disk_slots[0]}}));
  EXPECT_TRUE(events.committed.empty());
  report(job.id);
  EXPECT_EQ(directory->take_disk_events().committed.size(), 1u);
  EXPECT_EQ(directory->stats().counters.disk_evicted_keys, 1);
}

TEST_F(TwoTiers, ADemotionThatFailsLeavesTheKeyInHostMemoryOnly) {
  store(KeyList(0, 2));
  const PlannedJob job = directory->plan_demote(0, 100, 0, 10);
  report(job.id, false);
  EXPECT_EQ(directory->lookup(0, KeyList(0, 2)).host, 2);
  EXPECT_EQ(directory->states(0, KeyList(0, 1), true)[0], EntryState::free);
  EXPECT_TRUE(directory->take_disk_events().committed.empty());
}

TEST_F(TwoTiers, ARecordThatDoesNotVerifyIsAMissAndTheOthersMakeIt) {
  store(KeyList(0, 3));
  demote();
  store(KeyList(10, 14));
  (void)directory->take_disk_events();
  const PlannedJob job = directory->plan_promote(0, KeyList(0, 3), 10);
  report(job.id, true, {1});
  EXPECT_EQ(directory->lookup(0, KeyList(0, 3)).host, 1);
  EXPECT_EQ(directory->lookup(0, KeyList(2, 3)).host, 1);
  EXPECT_EQ(directory->states(0, KeyList(1, 2), true)[0], EntryState::free);
  EXPECT_EQ(directory->take_disk_events().freed, (std::vector<SlotName>{{0, job.disk_slots[1]}}));
  EXPECT_EQ(directory->stats().counters.failed_keys, 1);
}

TEST_F(TwoTiers, ACommitWaitsForEveryRank) {
  open(4, 8, 2);
  const std::int64_t stored = directory->plan_store(0, KeyList(0, 1), 10).id;
  for (int rank : {0, 1}) (void)directory->report(rank, {{stored, true, {}}});
  const std::int64_t job = directory->plan_demote(0, 100, 0, 10).id;
  (void)directory->report(1, {{job, true, {}}});
  EXPECT_TRUE(directory->take_disk_events().committed.empty());
  (void)directory->report(0, {{job, true, {0}}});  // one rank could not write this key
  EXPECT_TRUE(directory->take_disk_events().committed.empty());
  EXPECT_EQ(directory->lookup(0, KeyList(0, 1)).host, 1);
}

TEST_F(TwoTiers, AKeyThatLeavesHostMemoryBeforeItsTurnIsNotDemoted) {
  store(KeyList(0, 2));
  directory->forget(0, KeyList(0, 1));
  EXPECT_EQ(demote().keys, KeyList(1, 2).strings);
  EXPECT_EQ(directory->stats().counters.undemoted_keys, 1);
  EXPECT_EQ(directory->plan_demote(0, 100, 0, 10).id, 0) << "nothing waits any more";
}

TEST_F(TwoTiers, WhatIsForgottenBeforeItsCommitWasTakenIsNotCommitted) {
  store(KeyList(0, 2));
  const PlannedJob job = demote();
  directory->forget(0, KeyList(0, 1));
  const DiskEvents events = directory->take_disk_events();
  EXPECT_EQ(events.freed, (std::vector<SlotName>{{0, job.disk_slots[0]}}));
  ASSERT_EQ(events.committed.size(), 1u);
  EXPECT_EQ(events.committed[0].key, KeyList(1, 2).strings[0]);
}

TEST_F(TwoTiers, AllThatHostMemoryHasMayWait) {  // so that a caller may write only when half of it does, say
  constexpr int kMany = 70'000;
  open(kMany, kMany);
  store(KeyList(0, kMany));
  EXPECT_EQ(directory->stats().waiting_for_disk_keys, kMany);
  EXPECT_EQ(directory->stats().counters.undemoted_keys, 0);
}

TEST_F(TwoTiers, AKeyThatNoRecordHasRoomForDoesNotWait) {  // with it the whole job would be refused
  KeyList keys(0, 3);
  keys.strings[0].resize(kMostDiskKeyBytes), keys.strings[1].resize(kMostDiskKeyBytes + 1);
  keys.views.assign(keys.strings.begin(), keys.strings.end());
  store(keys);
  EXPECT_EQ(demote().keys, (std::vector{keys.strings[0], keys.strings[2]}));
  EXPECT_EQ(directory->stats().counters.undemoted_keys, 1);
}

TEST_F(TwoTiers, SecondTouchDemotesWhatIsAskedForAgain) {
  open(4, 8, 1, Admission::second_touch);
  store(KeyList(0, 4));
  EXPECT_EQ(directory->plan_demote(0, 100, 0, 10).id, 0);
  (void)directory->lookup(0, KeyList(0, 2));
  (void)directory->lookup(0, KeyList(0, 2));
  EXPECT_EQ(demote().keys, KeyList(0, 2).strings);
}

TEST_F(TwoTiers, ADeadlineQuarantinesBothSidesAndKeepsWhatWasRead) {
  open(40, 40);
  store(KeyList(0, 1));
  const PlannedJob job = directory->plan_demote(0, 100, 0, 10);
  EXPECT_EQ(directory->expire(11).size(), 1u);
  EXPECT_EQ(directory->stats().host.groups[0].slots.quarantined, 1);
  EXPECT_EQ(directory->stats().disk.groups[0].slots.quarantined, 1);
  EXPECT_EQ(directory->lookup(0, KeyList(0, 1)).host, 1) << "the key in host memory is as good as before";
  report(job.id);
  EXPECT_EQ(directory->stats().disk.groups[0].slots.free, 40);
  EXPECT_TRUE(directory->take_disk_events().committed.empty());
}

TEST_F(TwoTiers, ADiskThatHangsIsOffAndHostMemoryGoesOn) {
  open(20, 1000);
  store(KeyList(50, 51)), demote();
  const PlannedJob job = hang(KeyList(0, 2));  // much of host memory, little of the disk
  EXPECT_FALSE(directory->tier_off());
  EXPECT_TRUE(directory->stats().disk.off);
  EXPECT_EQ(directory->lookup(0, KeyList(0, 2)).host, 2);
  store(KeyList(2, 4));
  EXPECT_EQ(directory->lookup(0, KeyList(0, 4)).host, 4);
  EXPECT_EQ(directory->plan_demote(0, 100, 0, 20).id, 0);
  EXPECT_EQ(directory->states(0, KeyList(50, 51), true)[0], EntryState::free);
  report(job.id);
  EXPECT_FALSE(directory->stats().disk.off);
  EXPECT_EQ(directory->states(0, KeyList(50, 51), true)[0], EntryState::ready);
}

TEST_F(TwoTiers, PromotionsThatHangAreTheDisksFaultToo) {
  open(20, 1000);
  store(KeyList(0, 2)), demote();
  for (int i = 10; i < 50; i += 10) store(KeyList(i, i + 10));
  const PlannedJob job = directory->plan_promote(0, KeyList(0, 2), 10);
  ASSERT_EQ(job.slots.size(), 2u);
  (void)directory->expire(11);
  EXPECT_EQ(quarantined_in_host(), 2);
  EXPECT_FALSE(directory->tier_off());
  EXPECT_TRUE(directory->stats().disk.off);
  EXPECT_EQ(directory->lookup(0, KeyList(0, 2)).disk, 0);
  report(job.id);
  EXPECT_EQ(directory->lookup(0, KeyList(0, 2)).disk, 2) << "what was read is as good as before";
}

TEST_F(TwoTiers, StoresThatHangSwitchHostMemoryOffAndNotOnlyTheDisk) {
  open(20, 1000);
  (void)directory->plan_store(0, KeyList(0, 2), 10);
  (void)directory->expire(11);
  EXPECT_TRUE(directory->tier_off());
  EXPECT_FALSE(directory->stats().disk.off);
}

TEST_F(TwoTiers, ASlotThatALateDemotionReadsIsNotGivenToAnotherKey) {  // it still writes its trailer there
  const PlannedJob job = hang(KeyList(0, 1));
  directory->forget(0, KeyList(0, 1));
  const PlannedJob others = directory->plan_store(0, KeyList(10, 14), 20);
  ASSERT_EQ(others.slots.size(), 3u);
  for (const std::int64_t slot : others.slots) EXPECT_NE(slot, job.slots[0]);
  report(job.id);
  EXPECT_EQ(quarantined_in_host(), 0);
  EXPECT_EQ(directory->plan_store(0, KeyList(13, 14), 20).slots, job.slots);
}

TEST_F(TwoTiers, ASlotIsDemotedByOneJobAtATime) {
  open(40, 40, 2, Admission::second_touch);
  const std::int64_t stored = directory->plan_store(0, KeyList(0, 1), 10).id;
  for (int rank : {0, 1}) (void)directory->report(rank, {{stored, true}});
  (void)directory->lookup(0, KeyList(0, 1));
  const PlannedJob job = directory->plan_demote(0, 100, 0, 10);
  (void)directory->report(0, {{job.id, false}});  // the other rank still writes
  (void)directory->lookup(0, KeyList(0, 1));
  EXPECT_EQ(directory->plan_demote(0, 100, 0, 10).id, 0);
  (void)directory->report(1, {{job.id, true}});
  (void)directory->lookup(0, KeyList(0, 1));
  EXPECT_EQ(directory->plan_demote(0, 100, 0, 10).keys, KeyList(0, 1).strings);
}

TEST_F(TwoTiers, ADemotionThatFailedIsTriedAgainWhenTheKeyIsUsedButNotForEver) {
  store(KeyList(0, 2));
  int tries = 0;
  for (PlannedJob job = directory->plan_demote(0, 100, 0, 10); job.id != 0; ++tries) {
    EXPECT_EQ(job.keys, tries == 0 ? KeyList(0, 2).strings : KeyList(0, 1).strings);
    report(job.id, tries == 0, {0});
    EXPECT_EQ(directory->plan_demote(0, 100, 0, 10).id, 0) << "nobody has used it";
    (void)directory->lookup(0, KeyList(0, 2));
    job = directory->plan_demote(0, 100, 0, 10);
  }
  EXPECT_EQ(tries, 4);
  store(KeyList(2, 3)), demote();
  (void)directory->lookup(0, KeyList(0, 2));
  EXPECT_EQ(directory->plan_demote(0, 100, 0, 10).keys, KeyList(0, 1).strings) << "the disk works again";
  directory->forget(0, KeyList(0, 1));
  store(KeyList(0, 1));
  EXPECT_EQ(demote().keys, KeyList(0, 1).strings) << "stored anew it begins anew";
}

TEST_F(TwoTiers, ADemotionThatWasNeverSentIsTriedAgainToo) {
  store(KeyList(0, 1));
  EXPECT_TRUE(directory->abandon(directory->plan_demote(0, 100, 0, 10).id).ok());
  EXPECT_EQ(directory->plan_demote(0, 100, 0, 10).id, 0);
  store(KeyList(0, 1));
  EXPECT_EQ(demote().keys, KeyList(0, 1).strings);
}

TEST_F(TwoTiers, APromotionThatReadNothingSaysNothingOfTheRecords) {
  store(KeyList(0, 3)), demote();
  store(KeyList(10, 14));
  (void)directory->take_disk_events();
  report(directory->plan_promote(0, KeyList(0, 3), 10).id, false, {}, {0, 1, 2});  // refused as a whole
  EXPECT_EQ(directory->lookup(0, KeyList(0, 3)).disk, 3);
  EXPECT_TRUE(directory->take_disk_events().freed.empty());
  report(directory->plan_promote(0, KeyList(0, 3), 10).id, true, {1, 2}, {1});  // the last one does not verify
  EXPECT_EQ(directory->lookup(0, KeyList(0, 3)).host, 1);
  EXPECT_EQ(directory->states(0, KeyList(1, 3), true), (std::vector{EntryState::ready, EntryState::free}));
}

TEST_F(TwoTiers, ResetForgetsBothTiersAndWhatIsOnItsWay) {
  store(KeyList(0, 2));
  const std::int64_t job = directory->plan_demote(0, 1, 0, 10).id;
  directory->reset();
  report(job);
  EXPECT_EQ(directory->lookup(0, KeyList(0, 2)).host, 0);
  EXPECT_EQ(directory->lookup(0, KeyList(0, 2)).disk, 0);
  EXPECT_TRUE(directory->take_disk_events().committed.empty());
  EXPECT_EQ(directory->plan_demote(0, 100, 0, 10).id, 0);
  EXPECT_EQ(directory->stats().disk.groups[0].slots.free, 8);
}

TEST_F(TwoTiers, RestoresWhatAManifestKnows) {
  const KeyList keys(0, 3);
  EXPECT_TRUE(directory->restore({{0, 5}, keys.strings[0], 41}));
  EXPECT_FALSE(directory->restore({{0, 5}, keys.strings[1], 42})) << "the slot is taken";
  EXPECT_FALSE(directory->restore({{0, 6}, keys.strings[0], 43})) << "the key is there";
  EXPECT_FALSE(directory->restore({{0, 8}, keys.strings[1], 44})) << "there is no such slot";
  EXPECT_FALSE(directory->restore({{1, 0}, keys.strings[1], 45})) << "nor such a group";
  EXPECT_EQ(directory->lookup(0, keys).disk, 1);
  store(KeyList(10, 14));
  const PlannedJob job = demote();
  EXPECT_EQ(job.sequence, 46) << "sequence numbers go on";
  for (const std::int64_t slot : job.disk_slots) EXPECT_NE(slot, 5);
}

}  // namespace
}  // namespace kvo
