// Where the slots of a slab lie: in one file for each directory, the slots of an extent taken in turns. Pure
// arithmetic.
//
// A slot is named by its offset in the slab, as if that were one piece of memory: ExtentPlan::offset_of() has it.
#pragma once
#include <algorithm>
#include <cstdint>
#include <functional>
#include <utility>
#include <vector>

#include "base/units.h"

namespace kvo {

inline constexpr std::int64_t kSlabHeaderBytes = 4096;

struct SlabPlace {
  int file;
  std::int64_t offset;
};

struct SlabPlan {
  std::int64_t bytes = 0;  // of all slots
  std::int64_t extent_bytes = 0;
  std::vector<std::int64_t> slot_bytes;  // of the groups; an extent is lent to any of them
  int directories = 1;

  // What an extent of `bytes` takes in each file.
  std::int64_t stripe_bytes(std::int64_t extent) const {
    if (directories == 1) return extent;
    std::int64_t most = 0;
    for (const std::int64_t slot : slot_bytes) {
      most = std::max(most, round_up(extent / slot, directories) / directories * slot);
    }
    return most;
  }
  std::int64_t file_bytes() const {
    return kSlabHeaderBytes + bytes / extent_bytes * stripe_bytes(extent_bytes) + stripe_bytes(bytes % extent_bytes);
  }
  // What a file system may take for a file beyond its bytes: the map of where they are.
  std::int64_t disk_bytes() const { return directories * (file_bytes() + file_bytes() / 8192 + 64 * KiB); }

  SlabPlace place_of(std::int64_t offset, std::int64_t bytes_of_slot) const {
    const std::int64_t extent = offset / extent_bytes, index = offset % extent_bytes / bytes_of_slot;
    return {static_cast<int>(index % directories),
            kSlabHeaderBytes + extent * stripe_bytes(extent_bytes) + index / directories * bytes_of_slot};
  }
};

// The slab that takes at most `cap_bytes` on disk. extent_bytes_of(bytes): how large the extents of such a slab are.
inline SlabPlan fit_slab(std::int64_t cap_bytes, std::vector<std::int64_t> slot_bytes, int directories,
                         const std::function<std::int64_t(std::int64_t)>& extent_bytes_of) {
  SlabPlan plan{round_down(cap_bytes, kSlabHeaderBytes), 0, std::move(slot_bytes), directories};
  while (plan.bytes > 0) {
    plan.extent_bytes = extent_bytes_of(plan.bytes);
    const std::int64_t over_bytes = plan.disk_bytes() - cap_bytes;
    if (over_bytes <= 0) return plan;
    plan.bytes -= round_up(over_bytes, kSlabHeaderBytes);
  }
  plan.bytes = 0;
  return plan;
}

}  // namespace kvo
