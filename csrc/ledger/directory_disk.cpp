// Between host memory and disk: what is planned, and what a manifest must hear of it.
#include "ledger/directory.h"

namespace kvo {

PlannedJob Directory::plan_promote(int group, Keys keys, double deadline_seconds) {
  std::lock_guard lock(mutex_);
  if (!host_.serves(group) || !disk_.serves(group)) return {};
  const Tier::Kept kept(host_, group, keys, /*stored_again=*/false);
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
  job.epoch = epoch_;
  job.id = add_job({JobKind::promote, std::move(reads), std::move(fills), 0, {}, 0, deadline_seconds});
  return job;
}

bool Directory::disk_has_room(int group) const {
  const SlotPool& pool = disk_.pool();
  if (pool.counts(group).free > 0) return true;
  if (pool.free_extents() == 0) return false;  // as a rule: a large disk has thousands to look at
  for (std::size_t i = 0; i < pool.extents().size(); ++i) {
    const bool lent = pool.extents()[i].group >= 0;
    if (!lent && pool.plan().usable_slots(group, static_cast<std::int64_t>(i), pool.ready_bytes()) > 0) return true;
  }
  return false;
}

bool Directory::worth_a_write(const Entry* entry) const {
  if (!admission_.by_frequency() || disk_has_room(entry->group)) return true;
  const auto* victim = static_cast<const Entry*>(disk_.groups()[entry->group].policy->victim());
  return !victim || admission_.may_push_out(entry->group, entry->key.view(), victim->key.view());
}

PlannedJob Directory::plan_demote(int group, std::int64_t most, double now_seconds, double deadline_seconds) {
  std::lock_guard lock(mutex_);
  if (!host_.serves(group) || !disk_.serves(group)) return {};
  PlannedJob job;
  std::vector<Entry*> reads, fills;
  std::deque<std::string>& waiting = waiting_[group];
  const std::int64_t slot_bytes = disk_.pool().plan().slot_bytes[group];
  for (std::int64_t left = most; left > 0 && !waiting.empty(); waiting.pop_front()) {
    const std::string& key = waiting.front();
    Entry* entry = host_.find(group, key);
    const bool movable = entry && entry->state == EntryState::ready && !entry->being_demoted && !disk_.find(group, key);
    const bool admitted = movable && worth_a_write(entry);
    const bool affordable = admitted && budget_.allows(slot_bytes, now_seconds);
    Entry* record = affordable ? disk_.fill(group, key) : nullptr;
    if (affordable && !record) break;  // all that is on disk is in use: it goes on waiting, as do those behind it
    if (entry) entry->wanted_on_disk = false;
    counters_.undemoted_keys += !movable;
    counters_.unadmitted_keys += movable && !admitted;
    counters_.over_budget_keys += admitted && !affordable;
    left -= admitted;  // those over the budget too: the others may wait until it has more
    if (!record) continue;
    entry->being_demoted = true;
    budget_.spend(slot_bytes);
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
