#include "storage/disk_probe.h"

#include "storage/disk_tier_fixture.h"

namespace kvo {
namespace {

TEST(DiskProbe, TakesTheLeastInFlightThatIsNearlyAsFast) {
  const DiskTuning tried[] = {{1, 0, MiB, 100, 0},     {2, 0, MiB, 190, 0},     {4, 0, MiB, 197, 0},
                              {1, 0, 4 * MiB, 199, 0}, {2, 0, 4 * MiB, 200, 0}, {1, 0, 16 * MiB, 150, 0}};
  EXPECT_EQ(best_tuning(tried).depth, 2);
  EXPECT_EQ(best_tuning(tried).request_bytes, MiB);
  EXPECT_EQ(best_tuning(std::span(tried).subspan(4)).request_bytes, 4 * MiB);
  EXPECT_GT(best_tuning({}).depth, 0);
}

struct DiskTuningTest : DiskTierTest {
  DiskTuningTest() {
    options.depth = 0;
    options.slab.plan = {32 * MiB, 4 * MiB, {kSlot}, 1};
    options.memory = large.at(), options.memory_bytes = large.bytes();
    options.memory_ready = [bytes = large.bytes()] { return bytes; };
  }
  const Memory large{8 * MiB};
};

TEST_F(DiskTuningTest, ANewSlabIsTriedAndKeepsWhatWasFound) {
  open();
  const DiskTuning found = tier->report().tuning;
  EXPECT_GT(found.read_bytes_per_second, 0);
  EXPECT_GT(found.write_bytes_per_second, 0);
  EXPECT_LE(found.depth * found.request_bytes, 8 * MiB);
  ASSERT_TRUE(tier->set_identity(3).ok());
  fault::arm("io_eio", 0, 1);  // what would be tried would fail
  open();
  fault::disarm_all();
  EXPECT_EQ(tier->identity(), 3u);
  EXPECT_EQ(tier->report().tuning.read_bytes_per_second, found.read_bytes_per_second);
  options.depth = 3;
  open();
  EXPECT_EQ(tier->report().tuning.depth, 3);
}

TEST_F(DiskTuningTest, WhatASlabHoldsIsNotTouched) {
  options.depth = 8, options.request_bytes = MiB;  // so that nothing is tried
  open();
  EXPECT_EQ(tier->report().tuning.read_bytes_per_second, 0);
  ASSERT_TRUE(tier->set_identity(3).ok());
  demote({0, 1, 2});
  options.depth = 0, options.request_bytes = 0;
  open();
  EXPECT_EQ(tier->report().tuning.read_bytes_per_second, 0);
  EXPECT_EQ(promote({0, 1, 2}).failed, Slots());
}

TEST_F(DiskTuningTest, ADiskThatFailsIsUsedAsUsual) {
  fault::arm("io_eio", 3, 1);  // the last of the first 16 MiB that are written
  open();
  EXPECT_EQ(tier->report().tuning.read_bytes_per_second, 0);
  fault::arm("io_eio", 4, 10000);  // everything that is read
  open();
  fault::disarm_all();
  EXPECT_EQ(tier->report().tuning.read_bytes_per_second, 0);
  EXPECT_EQ(demote({0, 1, 2}).failed, Slots());
}

}  // namespace
}  // namespace kvo
