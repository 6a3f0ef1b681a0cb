// A policy plans with as many slots as its group has. Tier::check() compares the two.
#include <gtest/gtest.h>

#include <memory>
#include <string>
#include <vector>

#include "ledger/tier.h"

namespace kvo {
namespace {

constexpr std::int64_t kSlot = 4096, kExtents = 16;

struct TwoGroups : testing::Test {
  TwoGroups() {
    EXPECT_TRUE(tier.open(kExtents * 8 * kSlot, {kSlot, 2 * kSlot}, "arc").ok());
    EXPECT_EQ(tier.pool().plan().extent_bytes, 8 * kSlot);
  }
  ~TwoGroups() override { EXPECT_EQ(tier.check().message(), ""); }

  // Stores keys until `count` of them have been.
  void store(int group, int count) {
    for (int i = 0; i < count; ++i) {
      Entry* entry = tier.fill(group, "key of thirty-two bytes #" + std::to_string(group * 1000000 + next++));
      ASSERT_NE(entry, nullptr);
      tier.own(entry);
      tier.make_ready(entry);
      tier.disown(entry);
      ASSERT_EQ(tier.check().message(), "");
    }
  }
  std::int64_t capacity(int group) const { return tier.groups()[group].policy->capacity(); }

  Tier tier{"host", Medium::device};
  int next = 0;
};

TEST_F(TwoGroups, APolicyHearsOfEveryExtentThatItsGroupGets) {
  EXPECT_EQ(capacity(0), 0);
  tier.grow(kExtents * 8 * kSlot);
  EXPECT_EQ(capacity(0), 0) << "nothing is lent yet";
  store(0, 1);
  EXPECT_EQ(capacity(0), 8);
  store(0, 8);
  EXPECT_EQ(capacity(0), 16);
  store(1, 5);
  EXPECT_EQ(capacity(1), 8);
  EXPECT_EQ(capacity(0), 16);
}

TEST_F(TwoGroups, APolicyHearsOfMoreMemory) {
  tier.grow(3 * kSlot);
  store(0, 3);
  EXPECT_EQ(capacity(0), 3);
  tier.grow(5 * kSlot);
  EXPECT_EQ(capacity(0), 5) << "its extent, which was cut short, has more slots now";
}

TEST_F(TwoGroups, BothPoliciesHearOfAnExtentThatMoves) {
  tier.grow(kExtents * 8 * kSlot);
  store(0, kExtents * 8);
  EXPECT_EQ(capacity(0), kExtents * 8);
  store(1, 1);
  EXPECT_EQ(capacity(0), (kExtents - 1) * 8);
  EXPECT_EQ(capacity(1), 4);
}

TEST_F(TwoGroups, APolicyHearsOfExtentsThatRestoredKeysAreIn) {
  tier.grow(kExtents * 8 * kSlot);
  EXPECT_TRUE(tier.restore({1, 9}, "key of thirty-two bytes #1000000"));
  EXPECT_EQ(capacity(1), 4);
}

TEST_F(TwoGroups, AlsoWhenThereIsNoSuchSlot) {
  tier.grow(3 * kSlot);
  EXPECT_FALSE(tier.restore({0, 5}, "key of thirty-two bytes #1000000"));
  EXPECT_EQ(capacity(0), 3) << "the extent is lent";
}

// What it remembers of evicted keys has the size of its capacity.
TEST_F(TwoGroups, ThePolicyItselfIsTold) {
  tier.grow(kExtents * 8 * kSlot);
  store(0, kExtents * 8);
  const auto told = make_policy("arc");
  told->set_capacity(kExtents * 8);
  EXPECT_EQ(tier.groups()[0].policy->bytes(), told->bytes());
}

TEST(OneGroup, HasAllThatIsReady) {
  Tier tier("host", Medium::device);
  EXPECT_TRUE(tier.open(100 * kSlot, {kSlot}, "adaptive").ok());
  tier.grow(10 * kSlot);
  EXPECT_EQ(tier.groups()[0].policy->capacity(), 10);
  tier.grow(200 * kSlot);
  EXPECT_EQ(tier.groups()[0].policy->capacity(), 100);
  EXPECT_EQ(tier.check().message(), "");
}

}  // namespace
}  // namespace kvo
