// How an arena is cut: extents of equal size, lent to groups, each cut into its group's slots. Pure arithmetic that the
// ledger (which hands out slot numbers) and the mover (which turns them into addresses) share.
#pragma once
#include <cstdint>
#include <vector>

namespace kvo {

struct ExtentPlan {
  std::int64_t extent_bytes = 0;
  std::vector<std::int64_t> slot_bytes;  // per group

  std::int64_t slots_per_extent(int group) const { return extent_bytes / slot_bytes[group]; }
  std::int64_t extent_of(int group, std::int64_t slot) const { return slot / slots_per_extent(group); }
  // Arena offset of a slot number. Slot numbers of different groups may name the same bytes: an extent has one owner.
  std::int64_t offset_of(int group, std::int64_t slot) const {
    return extent_of(group, slot) * extent_bytes + slot % slots_per_extent(group) * slot_bytes[group];
  }
  // Slots of `group` in extent `extent` that end at or before `ready_bytes` (the last extent may be cut short).
  std::int64_t usable_slots(int group, std::int64_t extent, std::int64_t ready_bytes) const;
  // Slots below this number end at or before `ready_bytes`: extents become ready in order, and slots in each of them.
  std::int64_t slots_below(int group, std::int64_t ready_bytes) const {
    const std::int64_t extent = ready_bytes / extent_bytes;
    return extent * slots_per_extent(group) + usable_slots(group, extent, ready_bytes);
  }
};

// Extent size for a tier of `bytes`: one group: a multiple of its slot near 1 GiB, so that floor(bytes / slot) slots
// exist; several groups: at most 1 GiB, small enough that each group can own several.
ExtentPlan plan_extents(std::int64_t bytes, std::vector<std::int64_t> slot_bytes);

}  // namespace kvo
