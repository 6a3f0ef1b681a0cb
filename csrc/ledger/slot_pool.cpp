#include "ledger/slot_pool.h"

#include <algorithm>
#include <utility>

namespace kvo {

void SlotPool::open(ExtentPlan plan, std::int64_t total_bytes) {
  plan_ = std::move(plan);
  total_bytes_ = total_bytes;
  with_free_.resize(plan_.slot_bytes.size());
  lent_.resize(plan_.slot_bytes.size());
  counts_.resize(plan_.slot_bytes.size());
}

void SlotPool::grow(std::int64_t ready_bytes) {
  ready_bytes = std::min(ready_bytes, total_bytes_);
  if (ready_bytes <= ready_bytes_) return;
  // The extent that was cut short is the only one of those here that can gain slots.
  const int first_grown = static_cast<int>(ready_bytes_ / plan_.extent_bytes);
  ready_bytes_ = ready_bytes;
  const auto count = static_cast<std::size_t>((ready_bytes + plan_.extent_bytes - 1) / plan_.extent_bytes);
  while (extents_.size() < count) {
    unlent_.insert(static_cast<int>(extents_.size()));
    extents_.emplace_back();
  }
  if (first_grown < static_cast<int>(count) && extents_[first_grown].group >= 0) add_slots(first_grown);
  // One group alone gets all at once, so that its counts show the whole tier.
  while (groups() == 1 && !unlent_.empty()) lend(*unlent_.begin(), 0);
}

void SlotPool::add_slots(int index) {
  Extent& extent = extents_[index];
  const std::int64_t usable = plan_.usable_slots(extent.group, index, ready_bytes_);
  const std::int64_t first = index * plan_.slots_per_extent(extent.group);
  for (; extent.usable < usable; ++extent.usable) {
    Entry* entry = &extent.entries[extent.usable];
    entry->slot = first + extent.usable;
    entry->group = extent.group;
    extent.free.push_back(*entry);
    ++counts_[extent.group].capacity;
    ++counts_[extent.group].free;
  }
  if (extent.free.size() > 0) with_free_[extent.group].insert(index);
}

void SlotPool::lend(int index, int group) {
  Extent& extent = extents_[index];
  if (extent.group >= 0) {
    counts_[extent.group].capacity -= extent.usable;
    counts_[extent.group].free -= extent.usable;
    with_free_[extent.group].erase(index);
    --lent_[extent.group];
  }
  unlent_.erase(index);
  extent = Extent{};
  extent.group = group;
  extent.entries = std::make_unique<Entry[]>(static_cast<std::size_t>(plan_.usable_slots(group, index, total_bytes_)));
  ++lent_[group];
  add_slots(index);
}

Entry* SlotPool::take(int group) {
  if (with_free_[group].empty()) {
    const auto found = std::find_if(unlent_.begin(), unlent_.end(),
                                    [&](int extent) { return plan_.usable_slots(group, extent, ready_bytes_) > 0; });
    if (found == unlent_.end()) return nullptr;
    lend(*found, group);
  }
  Extent& extent = extents_[*with_free_[group].begin()];
  return use(extent, static_cast<Entry*>(extent.free.front()));
}

Entry* SlotPool::claim(int group, std::int64_t slot) {
  const std::int64_t per_extent = plan_.slots_per_extent(group), index = slot / per_extent;
  if (slot < 0 || index >= static_cast<std::int64_t>(extents_.size())) return nullptr;
  Extent& extent = extents_[index];
  if (extent.group < 0) lend(static_cast<int>(index), group);
  if (extent.group != group || slot % per_extent >= extent.usable) return nullptr;
  Entry* entry = &extent.entries[slot % per_extent];
  return entry->state == EntryState::free ? use(extent, entry) : nullptr;
}

Entry* SlotPool::use(Extent& extent, Entry* entry) {
  extent.free.remove(*entry);
  if (extent.free.size() == 0) with_free_[entry->group].erase(static_cast<int>(&extent - extents_.data()));
  ++extent.used;
  --counts_[entry->group].free;
  return entry;
}

void SlotPool::give(Entry* entry) {
  Extent& extent = extent_of(entry);
  entry->key.clear();
  entry->state = EntryState::free;
  entry->wanted_on_disk = false;
  entry->failed_demotions = 0;
  extent.free.push_back(*entry);
  with_free_[entry->group].insert(static_cast<int>(&extent - extents_.data()));
  --extent.used;
  ++counts_[entry->group].free;
}

void SlotPool::add_owner(Entry* entry) {
  if (entry->owners++ == 0) ++extent_of(entry).owned;
}

void SlotPool::remove_owner(Entry* entry) {
  if (--entry->owners == 0) --extent_of(entry).owned;
}

void SlotPool::quarantine(Entry* entry, Medium by) {
  const auto medium = static_cast<std::size_t>(by);
  const std::int64_t bytes = plan_.slot_bytes[entry->group];
  if (!entry->quarantined()) ++counts_[entry->group].quarantined, quarantined_bytes_ += bytes;
  if (entry->given_up_jobs[medium]++ == 0) bytes_hung_[medium] += bytes;
}

void SlotPool::end_quarantine(Entry* entry, Medium by) {
  const auto medium = static_cast<std::size_t>(by);
  const std::int64_t bytes = plan_.slot_bytes[entry->group];
  if (--entry->given_up_jobs[medium] == 0) bytes_hung_[medium] -= bytes;
  if (!entry->quarantined()) --counts_[entry->group].quarantined, quarantined_bytes_ -= bytes;
}

int SlotPool::extent_to_empty(int group) const {
  const auto richest = static_cast<int>(std::max_element(lent_.begin(), lent_.end()) - lent_.begin());
  if (lent_[richest] <= lent_[group]) return -1;
  int best = -1;
  for (int index = 0; index < static_cast<int>(extents_.size()); ++index) {
    const Extent& extent = extents_[index];
    if (extent.group != richest || extent.owned > 0) continue;
    if (plan_.usable_slots(group, index, ready_bytes_) == 0) continue;
    if (best < 0 || extent.used < extents_[best].used) best = index;
  }
  return best;
}

}  // namespace kvo
