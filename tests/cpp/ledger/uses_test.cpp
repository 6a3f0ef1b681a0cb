// What counts as a use of a key, as S3-FIFO shows it: its nodes count them, and a key used since it was last looked at
// is not evicted.
#include <gtest/gtest.h>

#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "ledger/directory.h"
#include "ledger/key_list.h"

namespace kvo {
namespace {

struct Uses : testing::Test {
  void open(int host_slots, int disk_slots) {
    ASSERT_TRUE(directory.open(host_slots * kSlot, {kSlot}).ok());
    directory.grow(host_slots * kSlot);
    if (disk_slots == 0) return;
    ASSERT_TRUE(directory.open_disk(disk_slots * kSlot, 0, 1).ok());
  }
  ~Uses() override { EXPECT_EQ(directory.check().message(), ""); }
  void report(std::int64_t job) { (void)directory.report(0, {{job, true, {}}}); }
  void store(int first, int end) { report(directory.plan_store(0, KeyList(first, end), 10).id); }
  bool in_host(int key) { return directory.states(0, KeyList(key, key + 1))[0] == EntryState::ready; }
  bool on_disk(int key) { return directory.states(0, KeyList(key, key + 1), true)[0] == EntryState::ready; }

  Directory directory{1, Admission::all, "s3fifo"};
};

using Use = std::function<void(Directory&, Keys)>;

struct EveryUse : Uses, testing::WithParamInterface<Use> {};

INSTANTIATE_TEST_SUITE_P(
    , EveryUse,
    testing::Values([](Directory& directory, Keys keys) { (void)directory.lookup(0, keys); },
                    [](Directory& directory, Keys keys) { directory.release(directory.hold(0, keys).first); },
                    [](Directory& directory, Keys keys) {
                      const GroupKeys group[] = {{0, keys, {}}};
                      (void)directory.lookup_groups(group, 0, /*hold=*/false);
                    },
                    [](Directory& directory, Keys keys) { (void)directory.plan_store(0, keys, 10); }));

TEST_P(EveryUse, KeepsAKey) {
  open(10, 0);
  store(0, 10);
  GetParam()(directory, KeyList(9, 10));
  store(10, 19);
  store(20, 29);  // it would be the first to go now
  EXPECT_TRUE(in_host(9));
  EXPECT_FALSE(in_host(10));
}

TEST_F(Uses, ALookupAndTheStoreAfterItAreOneAlsoWhileSomebodyReadsTheKey) {
  Tier tier("host", Medium::device);
  ASSERT_TRUE(tier.open(10 * kSlot, {kSlot}, "s3fifo").ok());
  tier.grow(10 * kSlot);
  const KeyList keys(0, 1);
  Entry* entry = tier.fill(0, keys.views[0]);
  tier.own(entry), tier.make_ready(entry), tier.disown(entry);
  tier.looked_up({entry});
  tier.own(entry);
  {
    const Tier::Kept stored(tier, 0, keys, /*stored_again=*/true);
  }
  EXPECT_EQ(entry->uses, 1);
  tier.looked_up({entry});
  EXPECT_EQ(entry->uses, 2) << "the next request";
  {
    const Tier::Kept promoted(tier, 0, keys, /*stored_again=*/false);
  }
  {
    const Tier::Kept stored(tier, 0, keys, /*stored_again=*/true);
  }
  EXPECT_EQ(entry->uses, 2);
  {
    const Tier::Kept stored(tier, 0, keys, /*stored_again=*/true);
  }
  EXPECT_EQ(entry->uses, 3) << "without a lookup the store is the use";
  tier.disown(entry);
  EXPECT_EQ(tier.check().message(), "");
}

// Host memory has one slot, the disk two. S3-FIFO keeps a key used twice rather than one used once, if it sees both.
TEST_F(Uses, EachPromotionEndsAUse) {
  open(1, 2);
  const auto put = [&](int key) {
    store(key, key + 1);
    report(directory.plan_demote(0, 1, 0, 10).id);
  };
  const auto get = [&](int key) {
    const KeyList keys(key, key + 1);
    ASSERT_EQ(directory.lookup(0, keys).disk, 1);
    report(directory.plan_promote(0, keys, 10).id);
  };
  put(0), put(1);
  get(0), get(1);
  put(2);
  EXPECT_FALSE(on_disk(0));
  get(1), get(2);
  put(3);
  EXPECT_TRUE(on_disk(1));
  EXPECT_FALSE(on_disk(2));
}

}  // namespace
}  // namespace kvo
