// Between host memory and disk: what is planned, and what a manifest must hear of it.
#include "ledger/directory.h"

namespace kvo {

PlannedJob Directory::plan_promote(int group, Keys keys, double deadline_seconds) {
  std::lock_guard lock(mutex_);
  if (!host_.serves(group) || !disk_.serves(group)) return {};
  const Tier::Kept kept(host_, group, keys);
  PlannedJob job;
  std::vector<Entry*> reads, fills;
  for (std::size_t i = 0; i < keys.size(); ++i) {
    if (host_.find(group, keys[i])) continue;  // there, or on its way for somebody else
    Entry* record = disk_.find(group, keys[i]);
    if (!record || record->state != EntryState::ready) break;
    Entry* entry = host_.fill(group, keys[i]);
    if (!entry) break;
    host_.own(entry), disk_.own(record);
    fills.push_back(entry), reads.push_back(record);
    job.accepted.push_back(static_cast<std::int64_t>(i));
    job.slots.push_back(entry->slot), job.disk_slots.push_back(record->slot);
  }
  if (fills.empty()) return {};
  ++counters_.promote_jobs;
  job.id = add_job({JobKind::promote, std::move(reads), std::move(fills), 0, {}, 0, deadline_seconds});
  return job;
}

PlannedJob Directory::plan_demote(int group, std::int64_t most, double deadline_seconds) {
  std::lock_guard lock(mutex_);
  if (!host_.serves(group) || !disk_.serves(group)) return {};
  PlannedJob job;
  std::vector<Entry*> reads, fills;
  std::deque<std::string>& waiting = waiting_[group];
  for (; static_cast<std::int64_t>(fills.size()) < most && !waiting.empty(); waiting.pop_front()) {
    const std::string& key = waiting.front();
    Entry* entry = host_.find(group, key);
    if (entry) entry->wanted_on_disk = false;
    const bool movable = entry && entry->state == EntryState::ready && !disk_.find(group, key);
    Entry* record = movable ? disk_.fill(group, key) : nullptr;
    if (!record) {
      ++counters_.undemoted_keys;
      continue;
    }
    host_.own(entry), disk_.own(record);
    reads.push_back(entry), fills.push_back(record);
    job.slots.push_back(entry->slot), job.disk_slots.push_back(record->slot);
    job.keys.push_back(key);
  }
  if (fills.empty()) return {};
  ++counters_.demote_jobs;
  job.sequence = next_sequence_, job.epoch = epoch_;
  next_sequence_ += static_cast<std::int64_t>(fills.size());
  job.id = add_job({JobKind::demote, std::move(reads), std::move(fills), job.sequence, {}, 0, deadline_seconds});
  return job;
}

DiskEvents Directory::take_disk_events() {
  std::lock_guard lock(mutex_);
  // Frees are noted first: a commit of what has gone meanwhile would come behind its free and bring the key back.
  std::erase_if(committed_, [&](const Record& record) {
    const Entry* entry = disk_.find(record.name.group, record.key);
    return !entry || entry->state != EntryState::ready || entry->slot != record.name.slot;
  });
  return {disk_.take_freed(), std::exchange(committed_, {}), epoch_};
}

}  // namespace kvo
