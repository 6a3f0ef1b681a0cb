#include "ledger/directory.h"

#include <algorithm>
#include <string>

namespace kvo {

namespace {

// A map never rehashes on the serving path up to this many keys (256 MiB of cells).
constexpr std::int64_t kReservedKeys = 1 << 24;

}  // namespace

Status Directory::open(std::int64_t host_bytes, std::vector<std::int64_t> slot_bytes) {
  std::lock_guard lock(mutex_);
  if (!groups_.empty() || slot_bytes.empty()) return {Code::invalid, "the directory is opened once, with groups"};
  const auto groups = static_cast<int>(slot_bytes.size());
  const std::int64_t least = groups * *std::max_element(slot_bytes.begin(), slot_bytes.end());
  if (host_bytes < least) {
    return {Code::invalid, "host = " + std::to_string(host_bytes) + " bytes: " + std::to_string(groups) +
                               " KV group(s) with these slots need at least " + std::to_string(least) +
                               ": raise host, or lower blocks_per_chunk"};
  }
  ExtentPlan plan = plan_extents(host_bytes, std::move(slot_bytes));
  groups_.resize(static_cast<std::size_t>(groups));
  for (int group = 0; group < groups; ++group) {
    groups_[group].map.reserve(static_cast<std::size_t>(std::min(kReservedKeys, host_bytes / plan.slot_bytes[group])));
  }
  pool_.open(std::move(plan), host_bytes);
  return {};
}

void Directory::grow(std::int64_t ready_bytes) {
  std::lock_guard lock(mutex_);
  if (!groups_.empty()) pool_.grow(ready_bytes);
}

bool Directory::serves(int group) const {
  return group >= 0 && group < static_cast<int>(groups_.size()) && !over_quarantine();
}

// More than 5 % of the tier waits for ranks that do not report: something is badly wrong, so stop handing out more.
bool Directory::over_quarantine() const { return pool_.quarantined_bytes() * 20 > pool_.ready_bytes(); }

std::vector<Entry*> Directory::leading_ready(int group, Keys keys) const {
  std::vector<Entry*> entries;
  if (!serves(group)) return entries;
  entries.reserve(keys.size());
  for (std::size_t start = 0; start < keys.size(); start += KeyTable::kBatch) {
    for (Entry* entry : groups_[group].map.find_many(keys.subspan(start))) {
      if (!entry || entry->state != EntryState::ready) return entries;
      entries.push_back(entry);
    }
  }
  return entries;
}

// Last key first: a prefix without its start is worthless, so its end is evicted first.
void Directory::touch(const std::vector<Entry*>& entries) {
  for (auto entry = entries.rbegin(); entry != entries.rend(); ++entry) {
    if ((*entry)->owners == 0) groups_[(*entry)->group].lru.move_to_back(*entry);
  }
}

void Directory::own(Entry* entry) {
  if (entry->owners == 0 && entry->state == EntryState::ready) groups_[entry->group].lru.remove(entry);
  pool_.add_owner(entry);
}

void Directory::disown(Entry* entry) {
  pool_.remove_owner(entry);
  if (entry->owners > 0) return;
  if (entry->state == EntryState::dead) pool_.give(entry);
  if (entry->state == EntryState::ready) groups_[entry->group].lru.push_back(entry);
}

// From here on the key is a miss; the slot is free once nobody owns it.
void Directory::drop(Entry* entry) {
  groups_[entry->group].map.erase(entry);
  bury(entry);
}

void Directory::bury(Entry* entry) {
  Group& group = groups_[entry->group];
  if (entry->state == EntryState::ready) {
    --group.ready_keys;
    if (entry->owners == 0) group.lru.remove(entry);
  }
  entry->state = EntryState::dead;
  if (entry->owners == 0) pool_.give(entry);
}

std::int64_t Directory::drop_all(const std::vector<Entry*>& entries) {
  std::int64_t dropped = 0;
  for (Entry* entry : entries) {
    if (entry->state == EntryState::dead) continue;
    drop(entry);
    ++dropped;
  }
  return dropped;
}

std::int64_t Directory::lookup(int group, Keys keys) {
  std::lock_guard lock(mutex_);
  const std::vector<Entry*> entries = leading_ready(group, keys);
  touch(entries);
  counters_.lookup_keys += static_cast<std::int64_t>(keys.size());
  counters_.hit_keys += static_cast<std::int64_t>(entries.size());
  return static_cast<std::int64_t>(entries.size());
}

std::vector<EntryState> Directory::states(int group, Keys keys) const {
  std::lock_guard lock(mutex_);
  std::vector<EntryState> states(keys.size(), EntryState::free);
  if (!serves(group)) return states;
  for (std::size_t start = 0; start < keys.size(); start += KeyTable::kBatch) {
    const KeyTable::Batch found = groups_[group].map.find_many(keys.subspan(start));
    for (std::size_t i = 0; i < std::min(KeyTable::kBatch, keys.size() - start); ++i) {
      if (found[i]) states[start + i] = found[i]->state;
    }
  }
  return states;
}

// A free slot; else the least recently used key of the group goes; else an extent of the richest group is emptied.
Entry* Directory::take_slot(int group) {
  if (Entry* entry = pool_.take(group)) return entry;
  // Keys touched by this very call are the list's end: when the front is one of them, so are all others.
  Entry* victim = groups_[group].lru.front();
  if (victim && victim->touched_by != store_calls_) {
    drop(victim);
    ++counters_.evicted_keys;
    return pool_.take(group);
  }
  const int index = pool_.extent_to_empty(group);
  if (index < 0) return nullptr;
  const SlotPool::Extent& extent = pool_.extents()[index];
  for (std::int64_t i = 0; i < extent.usable; ++i) {
    if (extent.entries[i].state == EntryState::free) continue;
    drop(&extent.entries[i]);
    ++counters_.evicted_keys;
  }
  pool_.lend(index, group);
  return pool_.take(group);
}

PlannedJob Directory::plan_store(int group, Keys keys, double deadline_seconds) {
  std::lock_guard lock(mutex_);
  const auto count = static_cast<std::int64_t>(keys.size());
  if (!serves(group)) {
    counters_.dropped_keys += count;
    return {};
  }
  ++store_calls_;
  std::vector<Entry*> known;
  for (std::size_t start = 0; start < keys.size(); start += KeyTable::kBatch) {
    for (Entry* entry : groups_[group].map.find_many(keys.subspan(start))) {
      if (!entry || entry->state != EntryState::ready) continue;
      entry->touched_by = store_calls_;
      known.push_back(entry);
    }
  }
  touch(known);

  PlannedJob job;
  std::vector<Entry*> entries;
  bool full = false;  // nothing becomes evictable within a call: the first refusal is the answer for all
  for (std::int64_t i = 0; i < count; ++i) {
    if (groups_[group].map.find(keys[i])) {
      ++counters_.skipped_keys;
      continue;
    }
    Entry* entry = full ? nullptr : take_slot(group);
    if (!entry) {
      full = true;
      ++counters_.dropped_keys;
      continue;
    }
    entry->key = keys[i];
    entry->state = EntryState::filling;
    groups_[group].map.insert(entry);
    own(entry);
    entries.push_back(entry);
    job.accepted.push_back(i);
    job.slots.push_back(entry->slot);
  }
  if (entries.empty()) return job;
  counters_.accepted_keys += static_cast<std::int64_t>(entries.size());
  ++counters_.store_jobs;
  job.id = add_job(JobKind::store, std::move(entries), deadline_seconds);
  return job;
}

PlannedJob Directory::plan_load(int group, Keys keys, double deadline_seconds) {
  std::lock_guard lock(mutex_);
  std::vector<Entry*> entries = leading_ready(group, keys);
  if (keys.empty() || entries.size() < keys.size()) return {};
  PlannedJob job;
  for (std::size_t i = 0; i < entries.size(); ++i) {
    own(entries[i]);
    job.accepted.push_back(static_cast<std::int64_t>(i));
    job.slots.push_back(entries[i]->slot);
  }
  ++counters_.load_jobs;
  job.id = add_job(JobKind::load, std::move(entries), deadline_seconds);
  return job;
}

std::pair<std::int64_t, std::int64_t> Directory::hold(int group, Keys keys) {
  std::lock_guard lock(mutex_);
  std::vector<Entry*> entries = leading_ready(group, keys);
  if (entries.empty()) return {0, 0};
  for (Entry* entry : entries) own(entry);
  const auto count = static_cast<std::int64_t>(entries.size());
  holds_.emplace(++last_id_, std::move(entries));
  return {last_id_, count};
}

void Directory::release(std::int64_t hold) {
  std::lock_guard lock(mutex_);
  auto node = holds_.extract(hold);
  if (node.empty()) return;
  for (auto entry = node.mapped().rbegin(); entry != node.mapped().rend(); ++entry) disown(*entry);
}

std::int64_t Directory::forget(int group, Keys keys) {
  std::lock_guard lock(mutex_);
  if (group < 0 || group >= static_cast<int>(groups_.size())) return 0;
  std::int64_t forgotten = 0;
  for (const std::string_view key : keys) {
    Entry* entry = groups_[group].map.find(key);
    if (!entry) continue;
    drop(entry);
    ++forgotten;
  }
  counters_.forgotten_keys += forgotten;
  return forgotten;
}

void Directory::reset() {
  std::lock_guard lock(mutex_);
  ++epoch_;
  for (Group& group : groups_) {
    counters_.forgotten_keys += static_cast<std::int64_t>(group.map.size());
    group.map.clear([&](Entry* entry) { bury(entry); });
  }
}

}  // namespace kvo
