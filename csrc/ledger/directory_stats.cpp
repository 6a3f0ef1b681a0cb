// What the directory shows of itself, and the recount that tests hold it to.
#include <string>
#include <unordered_map>

#include "ledger/directory.h"

namespace kvo {

namespace {

Status broken(const std::string& what) { return {Code::invalid, "broken invariant: " + what}; }

}  // namespace

bool Directory::tier_off() const {
  std::lock_guard lock(mutex_);
  return over_quarantine();
}

DirectoryStats Directory::stats() const {
  std::lock_guard lock(mutex_);
  DirectoryStats stats;
  stats.counters = counters_;
  for (int i = 0; i < pool_.groups(); ++i) {
    const Group& group = groups_[i];
    const SlotCounts& slots = pool_.counts(i);
    const std::int64_t slot_bytes = pool_.plan().slot_bytes[i];
    const std::int64_t filling_keys = static_cast<std::int64_t>(group.map.size()) - group.ready_keys;
    stats.groups.push_back({slots, slot_bytes, group.ready_keys, filling_keys});
    stats.used_bytes += slots.used() * slot_bytes;
  }
  stats.epoch = epoch_;
  stats.ready_bytes = pool_.ready_bytes();
  stats.quarantined_bytes = pool_.quarantined_bytes();
  stats.free_extents = pool_.free_extents();
  stats.jobs_in_flight = static_cast<std::int64_t>(jobs_.size());
  for (const auto& [id, job] : jobs_) stats.given_up_jobs += job.given_up;
  stats.holds = static_cast<std::int64_t>(holds_.size());
  stats.tier_off = over_quarantine();
  stats.serving = !groups_.empty() && !stats.tier_off;
  return stats;
}

Status Directory::check() const {
  std::lock_guard lock(mutex_);
  std::int64_t quarantined_bytes = 0;
  for (int group = 0; group < pool_.groups(); ++group) {
    KVO_TRY(check_group(group));
    quarantined_bytes += pool_.counts(group).quarantined * pool_.plan().slot_bytes[group];
  }
  if (quarantined_bytes != pool_.quarantined_bytes()) return broken("quarantined bytes");
  return check_owners();
}

// Counts every slot of the group's extents by state, and the map and the LRU list against them.
Status Directory::check_group(int index) const {
  const Group& group = groups_[index];
  const std::string name = "group " + std::to_string(index) + ": ";
  SlotCounts counted;
  std::int64_t in_map = 0, ready = 0, evictable = 0;
  for (std::size_t e = 0; e < pool_.extents().size(); ++e) {
    const SlotPool::Extent& extent = pool_.extents()[e];
    if (extent.group != index) continue;
    std::int64_t used = 0, owned = 0;
    for (std::int64_t i = 0; i < extent.usable; ++i) {
      const Entry& entry = extent.entries[i];
      const bool visible = entry.state == EntryState::filling || entry.state == EntryState::ready;
      if (entry.group != index || entry.owners < 0 || entry.given_up_jobs < 0 || entry.given_up_jobs > entry.owners)
        return broken(name + "owners of slot " + std::to_string(entry.slot));
      if (pool_.plan().offset_of(index, entry.slot) + pool_.plan().slot_bytes[index] > pool_.ready_bytes())
        return broken(name + "slot " + std::to_string(entry.slot) + " ends behind the ready bytes");
      if (visible && group.map.find(entry.key.view()) != &entry)
        return broken(name + "a visible key is not in the map");
      if (entry.owners == 0 && (entry.state == EntryState::dead || entry.state == EntryState::filling))
        return broken(name + "slot " + std::to_string(entry.slot) + " leaked");
      used += entry.state != EntryState::free;
      owned += entry.owners > 0;
      counted.quarantined += entry.given_up_jobs > 0;
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
  for (const Entry* entry = group.lru.front(); entry; entry = entry->next) --evictable;
  return evictable == 0 ? Status{} : broken(name + "LRU list");
}

// Every owner an entry counts is a job in flight or a hold, and the other way round.
Status Directory::check_owners() const {
  std::unordered_map<const Entry*, std::pair<int, int>> counted;  // owners, given-up jobs among them
  for (const auto& [id, job] : jobs_) {
    for (const Entry* entry : job.entries) {
      ++counted[entry].first;
      counted[entry].second += job.given_up;
    }
  }
  for (const auto& [id, entries] : holds_) {
    for (const Entry* entry : entries) ++counted[entry].first;
  }
  for (const SlotPool::Extent& extent : pool_.extents()) {
    for (std::int64_t i = 0; i < extent.usable; ++i) {
      const Entry* entry = &extent.entries[i];
      const auto found = counted.find(entry);
      const auto [owners, given_up] = found == counted.end() ? std::pair{0, 0} : found->second;
      if (owners != entry->owners || given_up != entry->given_up_jobs)
        return broken("slot " + std::to_string(entry->slot) + " of group " + std::to_string(entry->group) +
                      " counts owners that are none");
      if (found != counted.end()) counted.erase(found);
    }
  }
  return counted.empty() ? Status{} : broken("an owner of a slot that is not lent");
}

}  // namespace kvo
