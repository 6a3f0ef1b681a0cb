#include "ledger/policy_ghost.h"

#include <gtest/gtest.h>

#include <random>

namespace kvo {
namespace {

struct Ghosts : testing::Test {
  Ghosts() {
    table.set_capacity(kCapacity);
    std::mt19937_64 random(1);
    for (std::uint64_t& hash : hashes) hash = random();
  }
  int remembered(int first, int end) {
    int count = 0;
    for (int i = first; i < end; ++i) count += table.take(hashes[i]).has_value();
    return count;
  }

  static constexpr int kCapacity = 10000, kKeys = 8 * kCapacity;
  GhostTable table;
  std::vector<std::uint64_t> hashes = std::vector<std::uint64_t>(kKeys);
};

TEST_F(Ghosts, TakingAKeyForgetsIt) {
  for (int tag = 0; tag < 4; ++tag) table.insert(hashes[tag], tag);
  EXPECT_EQ(table.size(), 4);
  for (int tag = 0; tag < 4; ++tag) EXPECT_EQ(table.take(hashes[tag]), tag);
  for (int tag = 0; tag < 4; ++tag) EXPECT_EQ(table.take(hashes[tag]), std::nullopt);
  EXPECT_EQ(table.size(), 0);
}

// However long it runs: the last `capacity` keys are there, and older ones are not, in one piece.
TEST_F(Ghosts, TheLastKeysAreRememberedAndOlderOnesTogetherForgotten) {
  for (const std::uint64_t hash : hashes) table.insert(hash, 1);
  EXPECT_EQ(table.size(), kCapacity);
  EXPECT_LE(remembered(0, kKeys - kCapacity * 21 / 20), 5);  // strangers with the same mark
  EXPECT_GE(remembered(kKeys - kCapacity, kKeys), kCapacity * 995 / 1000);
  EXPECT_EQ(remembered(0, kKeys), 0);
  EXPECT_LE(std::abs(table.size()), kCapacity / 20);
}

TEST_F(Ghosts, StrangersAreHardlyEverTakenForAKey) {
  for (int i = 0; i < kCapacity; ++i) table.insert(hashes[i], 1);
  EXPECT_LE(remembered(kCapacity, kKeys), 5);
}

TEST_F(Ghosts, ASmallChangeOfCapacityForgetsNothing) {
  for (int i = 0; i < 1000; ++i) table.insert(hashes[i], 1);
  table.set_capacity(kCapacity + kCapacity / 10);
  EXPECT_EQ(remembered(0, 500), 500);
  table.set_capacity(2 * kCapacity);
  EXPECT_EQ(remembered(500, 1000), 0);
  EXPECT_EQ(table.size(), 0);
}

}  // namespace
}  // namespace kvo
