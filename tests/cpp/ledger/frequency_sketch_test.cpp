#include "ledger/frequency_sketch.h"

#include <gtest/gtest.h>

namespace kvo {
namespace {

constexpr int kKeys = 4096, kLines = kKeys / 8, kUsesToHalveALine = 24;

std::uint64_t hash_of(std::uint64_t key) {
  key += 0x9e3779b97f4a7c15;
  key = (key ^ (key >> 30)) * 0xbf58476d1ce4e5b9;
  key = (key ^ (key >> 27)) * 0x94d049bb133111eb;
  return key ^ (key >> 31);
}

struct Sketch : testing::Test {
  Sketch() { sketch.set_capacity(kKeys); }
  void use(std::uint64_t key, int times = 1) {
    for (int i = 0; i < times; ++i) sketch.add(hash_of(key));
  }
  int count(std::uint64_t key) const { return sketch.count(hash_of(key)); }
  FrequencySketch sketch;
};

TEST_F(Sketch, CountsUpToFifteen) {
  EXPECT_EQ(count(1), 0);
  for (int uses = 1; uses <= 15; ++uses) {
    use(1);
    EXPECT_EQ(count(1), uses);
  }
  use(1, 5);
  EXPECT_EQ(count(1), FrequencySketch::kMost);
  EXPECT_EQ(count(2), 0);
}

TEST_F(Sketch, EightBytesAKey) {
  EXPECT_EQ(sketch.bytes(), 8u * kKeys);
  sketch.set_capacity(1);
  EXPECT_EQ(sketch.bytes(), 8u * 1024) << "few keys get more, or one another's uses";
}

TEST_F(Sketch, NoKeyIsTakenForFarMoreOrLessThanItIs) {
  constexpr int kCold = 8000, kHot = 400;
  for (int key = 0; key < kCold; ++key) use(key);
  for (int round = 0; round < 8; ++round)
    for (int key = 0; key < kHot; ++key) use(kCold + key);
  int wrong = 0;
  for (int key = 0; key < kCold; ++key) wrong += count(key) > 2;
  for (int key = kCold; key < kCold + kHot; ++key) wrong += count(key) < 4;
  EXPECT_EQ(wrong, 0);
}

TEST_F(Sketch, UsesFadeLineByLine) {
  constexpr int kFew = 100;
  for (int key = 0; key < kFew; ++key) use(key, 12);
  int faded = 0;
  for (int key = 0; key < kFew; ++key) faded += count(key) < 12;
  EXPECT_LT(faded, kFew / 4) << "not all at once";
  for (int i = 0; i < kLines * kUsesToHalveALine; ++i) use(1 << 20);  // one key's: the others' stay
  for (int key = 0; key < kFew; ++key) EXPECT_LE(count(key), 9) << key;
  for (int i = 0; i < 4 * kLines * kUsesToHalveALine; ++i) use(1 << 20);
  for (int key = 0; key < kFew; ++key) EXPECT_EQ(count(key), 0) << key;
}

TEST_F(Sketch, HalvingOneCounterLeavesItsNeighboursAlone) {
  constexpr int kOnce = kLines * kUsesToHalveALine;
  for (int key = 0; key < kOnce; ++key) use(key);
  for (int i = 0; i < kOnce; ++i) use(1 << 20);
  for (int key = 0; key < kOnce; ++key) EXPECT_LE(count(key), 3) << key;
}

TEST_F(Sketch, ANewCapacityForgets) {
  use(1, 3);
  sketch.set_capacity(kKeys);
  EXPECT_EQ(count(1), 0);
}

}  // namespace
}  // namespace kvo
