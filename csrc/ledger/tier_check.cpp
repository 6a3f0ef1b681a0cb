// The recount that tests hold a tier to.
#include <algorithm>
#include <string>

#include "ledger/tier.h"

namespace kvo {

namespace {

Status broken(const std::string& what) { return {Code::invalid, "broken invariant: " + what}; }

}  // namespace

Status Tier::check() const {
  std::int64_t quarantined_bytes = 0;
  for (int group = 0; group < pool_.groups(); ++group) {
    KVO_TRY(check_group(group));
    quarantined_bytes += pool_.counts(group).quarantined * pool_.plan().slot_bytes[group];
  }
  return quarantined_bytes == pool_.quarantined_bytes() ? Status{} : broken(std::string(name_) + " quarantined bytes");
}

// Counts every slot of the group's extents by state, and the map and the policy against them.
Status Tier::check_group(int index) const {
  const Group& group = groups_[index];
  const std::string name = std::string(name_) + " group " + std::to_string(index) + ": ";
  SlotCounts counted;
  std::int64_t in_map = 0, ready = 0, evictable = 0;
  for (std::size_t e = 0; e < pool_.extents().size(); ++e) {
    const SlotPool::Extent& extent = pool_.extents()[e];
    if (extent.group != index) continue;
    std::int64_t used = 0, owned = 0;
    for (std::int64_t i = 0; i < extent.usable; ++i) {
      const Entry& entry = extent.entries[i];
      const bool visible = entry.state == EntryState::filling || entry.state == EntryState::ready;
      if (entry.group != index || entry.owners < 0 || std::ranges::min(entry.given_up_jobs) < 0 ||
          entry.given_up(Medium::device) + entry.given_up(Medium::disk) > entry.owners)
        return broken(name + "owners of slot " + std::to_string(entry.slot));
      if (pool_.plan().offset_of(index, entry.slot) + pool_.plan().slot_bytes[index] > pool_.ready_bytes())
        return broken(name + "slot " + std::to_string(entry.slot) + " ends behind the ready bytes");
      if (visible && group.map.find(entry.key.view()) != &entry)
        return broken(name + "a visible key is not in the map");
      if (entry.owners == 0 && (entry.state == EntryState::dead || entry.state == EntryState::filling))
        return broken(name + "slot " + std::to_string(entry.slot) + " leaked");
      used += entry.state != EntryState::free;
      owned += entry.owners > 0;
      counted.quarantined += entry.quarantined();
      in_map += visible;
      ready += entry.state == EntryState::ready;
      evictable += entry.state == EntryState::ready && entry.owners == 0;
    }
    if (used != extent.used || owned != extent.owned) return broken(name + "extent " + std::to_string(e));
    counted.capacity += extent.usable;
    counted.free += extent.usable - used;
  }
  const SlotCounts& slots = pool_.counts(index);
  if (counted.capacity != slots.capacity || counted.free != slots.free || counted.quarantined != slots.quarantined)
    return broken(name + "free + used + quarantined is not the capacity");
  if (in_map != static_cast<std::int64_t>(group.map.size()) || ready != group.ready_keys)
    return broken(name + "keys in the map");
  if (slots.capacity != group.policy->capacity()) return broken(name + "the capacity that its policy was told");
  return evictable == group.policy->evictable() ? Status{} : broken(name + "what may be evicted");
}

}  // namespace kvo
