#include "layout/extents.h"

#include <algorithm>
#include <utility>

#include "base/units.h"

namespace kvo {
namespace {

constexpr std::int64_t kExtentBytes = GiB;
constexpr std::int64_t kExtentsPerGroup = 8;  // so that a group can grow and shrink in steps

// Share of an extent that is lost because slots do not fill it, summed over the groups.
double waste_of(std::int64_t extent_bytes, const std::vector<std::int64_t>& slot_bytes) {
  std::int64_t lost = 0;
  for (const std::int64_t slot : slot_bytes) lost += extent_bytes % slot;
  return static_cast<double>(lost) / static_cast<double>(extent_bytes);
}

}  // namespace

std::int64_t ExtentPlan::usable_slots(int group, std::int64_t extent, std::int64_t ready_bytes) const {
  const std::int64_t usable = std::min(ready_bytes - extent * extent_bytes, extent_bytes);
  return std::max<std::int64_t>(usable, 0) / slot_bytes[group];
}

ExtentPlan plan_extents(std::int64_t bytes, std::vector<std::int64_t> slot_bytes) {
  if (slot_bytes.empty()) return {};
  const std::int64_t largest = *std::max_element(slot_bytes.begin(), slot_bytes.end());
  std::int64_t target = kExtentBytes;
  if (const auto groups = static_cast<std::int64_t>(slot_bytes.size()); groups > 1) {
    target = std::min(target, bytes / (groups * kExtentsPerGroup));
  }
  // Multiples of the largest slot (so of 4 KiB), in the upper half of what is allowed: the one that wastes least.
  const std::int64_t most = std::max<std::int64_t>(target / largest, 1);
  std::int64_t best = most * largest;
  for (std::int64_t slots = most - 1; slots > most / 2; --slots) {
    if (waste_of(slots * largest, slot_bytes) < waste_of(best, slot_bytes)) best = slots * largest;
  }
  return {best, std::move(slot_bytes)};
}

}  // namespace kvo
