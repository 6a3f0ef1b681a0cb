#include "layout/extents.h"

#include <gtest/gtest.h>

#include "base/units.h"

namespace kvo {
namespace {

// What a tier of `bytes` holds of one group when it owns all extents.
std::int64_t all_slots(const ExtentPlan& plan, int group, std::int64_t bytes) {
  std::int64_t slots = 0;
  for (std::int64_t extent = 0; extent * plan.extent_bytes < bytes; ++extent) {
    slots += plan.usable_slots(group, extent, bytes);
  }
  return slots;
}

TEST(Extents, OneGroupLosesNoSlot) {
  for (const std::int64_t slot : {4 * KiB, 516 * KiB, 2 * MiB + 4 * KiB, 3 * GiB}) {
    for (const std::int64_t bytes : {4 * KiB - 1, 100 * MiB, 5 * GiB + 123, 10 * GiB}) {
      const ExtentPlan plan = plan_extents(bytes, {slot});
      EXPECT_EQ(all_slots(plan, 0, bytes), bytes / slot) << slot << " of " << bytes;
      EXPECT_EQ(plan.extent_bytes % slot, 0);
      EXPECT_LE(plan.extent_bytes, std::max(GiB, slot));
    }
  }
}

TEST(Extents, SlotsOfAnExtentAreApartAndInside) {
  const ExtentPlan plan = plan_extents(20 * GiB, {516 * KiB, 1284 * KiB, 20 * KiB});
  for (int group = 0; group < 3; ++group) {
    std::int64_t end = 0;
    for (std::int64_t slot = 0; slot < 3 * plan.slots_per_extent(group); ++slot) {
      const std::int64_t offset = plan.offset_of(group, slot), extent = plan.extent_of(group, slot);
      ASSERT_GE(offset, end);
      ASSERT_EQ(offset % 4096, 0);
      ASSERT_GE(offset, extent * plan.extent_bytes);
      end = offset + plan.slot_bytes[group];
      ASSERT_LE(end, (extent + 1) * plan.extent_bytes);
    }
  }
}

TEST(Extents, SeveralGroupsEachOwnSeveral) {
  for (const std::int64_t bytes : {256 * MiB, 4 * GiB, 64 * GiB}) {
    const ExtentPlan plan = plan_extents(bytes, {516 * KiB, 1284 * KiB});
    EXPECT_GE(bytes / plan.extent_bytes, 2 * 4);
    EXPECT_LE(plan.extent_bytes, GiB);
    for (int group = 0; group < 2; ++group) {  // little is lost to what does not fill an extent
      const std::int64_t lost = plan.extent_bytes - plan.slots_per_extent(group) * plan.slot_bytes[group];
      EXPECT_LT(lost, plan.extent_bytes / 20) << bytes;
    }
  }
  EXPECT_EQ(plan_extents(64 * GiB, {512 * KiB, 768 * KiB}).extent_bytes % (1536 * KiB), 0);  // nothing is lost
}

TEST(Extents, ATierTooSmallStillHasAnExtentOfOneSlot) {
  const ExtentPlan plan = plan_extents(1 * MiB, {516 * KiB, 1284 * KiB});
  EXPECT_EQ(plan.extent_bytes, 1284 * KiB);
  EXPECT_EQ(plan.usable_slots(0, 0, 1 * MiB), 1);
  EXPECT_EQ(plan.usable_slots(1, 0, 1 * MiB), 0);
}

TEST(Extents, UsableSlotsFollowWhatIsReady) {
  const ExtentPlan plan = plan_extents(10 * GiB, {MiB});
  EXPECT_EQ(plan.extent_bytes, GiB);
  EXPECT_EQ(plan.usable_slots(0, 0, 0), 0);
  EXPECT_EQ(plan.usable_slots(0, 0, MiB - 1), 0);
  EXPECT_EQ(plan.usable_slots(0, 0, MiB), 1);
  EXPECT_EQ(plan.usable_slots(0, 0, 5 * GiB), 1024);
  EXPECT_EQ(plan.usable_slots(0, 2, 2 * GiB + 3 * MiB / 2), 1);
  EXPECT_EQ(plan.usable_slots(0, 3, 2 * GiB), 0);
}

}  // namespace
}  // namespace kvo
