#include "ledger/directory.h"

#include <algorithm>

namespace kvo {

namespace {

// Keys of a group that wait for the disk, where host memory has not more slots; further ones are not demoted.
constexpr std::int64_t kMostWaiting = 1 << 16;

bool is_ready(const Entry* entry) { return entry && entry->state == EntryState::ready; }

}  // namespace

Status Directory::open(std::int64_t host_bytes, const std::vector<std::int64_t>& slot_bytes) {
  std::lock_guard lock(mutex_);
  if (host_.pool().groups() > 0 || slot_bytes.empty())
    return {Code::invalid, "the directory is opened once, with groups"};
  waiting_.resize(slot_bytes.size());
  return host_.open(host_bytes, slot_bytes, policy_);
}

Status Directory::open_disk(std::int64_t disk_bytes, std::int64_t epoch, std::int64_t next_sequence) {
  std::lock_guard lock(mutex_);
  if (host_.pool().groups() == 0 || disk_open()) return {Code::invalid, "the disk is opened once, after host memory"};
  const std::vector<std::int64_t>& slot_bytes = host_.pool().plan().slot_bytes;
  KVO_TRY(budget_.check(*std::ranges::max_element(slot_bytes)));
  KVO_TRY(disk_.open(disk_bytes, slot_bytes, policy_));
  admission_.set_capacity(disk_bytes / *std::ranges::min_element(slot_bytes));
  disk_.grow(disk_bytes);
  epoch_ = epoch, next_sequence_ = next_sequence;
  return {};
}

bool Directory::restore(const Record& record) {
  std::lock_guard lock(mutex_);
  next_sequence_ = std::max(next_sequence_, record.sequence + 1);
  return disk_open() && disk_.restore(record.name, record.key);
}

void Directory::grow(std::int64_t ready_bytes) {
  std::lock_guard lock(mutex_);
  host_.grow(ready_bytes);
}

Directory::Hits Directory::lookup(int group, Keys keys) {
  std::lock_guard lock(mutex_);
  Hits hits;
  std::vector<Entry*> in_host = host_.leading_ready(group, keys), on_disk;
  hits.host = static_cast<std::int64_t>(in_host.size());
  bool leading = host_.serves(group) && disk_.serves(group);  // what is only on disk comes through host memory
  for (std::size_t start = in_host.size(); leading && start < keys.size(); start += KeyTable::kBatch) {
    const KeyTable::Batch entries = host_.find_many(group, keys.subspan(start));
    const KeyTable::Batch records = disk_.find_many(group, keys.subspan(start));
    for (std::size_t i = 0; i < std::min(KeyTable::kBatch, keys.size() - start); ++i) {
      leading = is_ready(entries[i]) || is_ready(records[i]);
      if (!leading) break;
      (is_ready(entries[i]) ? in_host : on_disk).push_back(is_ready(entries[i]) ? entries[i] : records[i]);
      ++hits.disk;
    }
  }
  looked_up(in_host, on_disk);
  counters_.lookup_keys += static_cast<std::int64_t>(keys.size());
  counters_.hit_keys += hits.host;
  counters_.disk_hit_keys += hits.disk;
  return hits;
}

// A request looks again and again while it waits, which is one use: the policy's mark says that it did.
void Directory::looked_up(const std::vector<Entry*>& in_host, const std::vector<Entry*>& on_disk) {
  for (const auto* entries : {&in_host, &on_disk}) {
    for (const Entry* entry : *entries)
      if (admission_.by_frequency() && !entry->looked_up) admission_.used(entry->group, entry->key.view());
  }
  host_.looked_up(in_host);
  disk_.looked_up(on_disk);
  want_on_disk(in_host, /*at_use=*/true);
}

std::vector<EntryState> Directory::states(int group, Keys keys, bool on_disk) const {
  std::lock_guard lock(mutex_);
  const Tier& tier = on_disk ? disk_ : host_;
  std::vector<EntryState> states(keys.size(), EntryState::free);
  if (!tier.serves(group)) return states;
  for (std::size_t start = 0; start < keys.size(); start += KeyTable::kBatch) {
    const KeyTable::Batch found = tier.find_many(group, keys.subspan(start));
    for (std::size_t i = 0; i < std::min(KeyTable::kBatch, keys.size() - start); ++i) {
      if (found[i]) states[start + i] = found[i]->state;
    }
  }
  return states;
}

PlannedJob Directory::plan_store(int group, Keys keys, double deadline_seconds) {
  std::lock_guard lock(mutex_);
  const auto count = static_cast<std::int64_t>(keys.size());
  if (!host_.serves(group)) {
    counters_.dropped_keys += count;
    return {};
  }
  count_store(group, keys);
  const Tier::Kept kept(host_, group, keys, /*stored_again=*/true);
  PlannedJob job;
  std::vector<Entry*> fills, again;
  bool full = false;  // nothing becomes evictable within a call: the first refusal is the answer for all
  for (std::int64_t i = 0; i < count; ++i) {
    if (Entry* known = host_.find(group, keys[i])) {
      ++counters_.skipped_keys;
      if (is_ready(known)) again.push_back(known);
      continue;
    }
    Entry* entry = full ? nullptr : host_.fill(group, keys[i]);
    if (!entry) {
      full = true;
      ++counters_.dropped_keys;
      continue;
    }
    host_.own(entry);
    fills.push_back(entry);
    job.accepted.push_back(i);
    job.slots.push_back(entry->slot);
  }
  want_on_disk(again, /*at_use=*/true);
  if (fills.empty()) return job;
  counters_.accepted_keys += static_cast<std::int64_t>(fills.size());
  ++counters_.store_jobs;
  job.id = add_job({JobKind::store, {}, std::move(fills), 0, {}, 0, deadline_seconds});
  return job;
}

PlannedJob Directory::plan_load(int group, Keys keys, double deadline_seconds) {
  std::lock_guard lock(mutex_);
  std::vector<Entry*> reads = host_.leading_ready(group, keys);
  if (keys.empty() || reads.size() < keys.size()) return {};
  PlannedJob job;
  for (std::size_t i = 0; i < reads.size(); ++i) {
    host_.own(reads[i]);
    job.accepted.push_back(static_cast<std::int64_t>(i));
    job.slots.push_back(reads[i]->slot);
  }
  ++counters_.load_jobs;
  job.id = add_job({JobKind::load, std::move(reads), {}, 0, {}, 0, deadline_seconds});
  return job;
}

std::pair<std::int64_t, std::int64_t> Directory::hold(int group, Keys keys) {
  std::lock_guard lock(mutex_);
  std::vector<Entry*> entries = host_.leading_ready(group, keys);
  if (entries.empty()) return {0, 0};
  looked_up(entries, {});
  const auto count = static_cast<std::int64_t>(entries.size());
  return {add_hold(std::move(entries)), count};
}

std::int64_t Directory::add_hold(std::vector<Entry*> entries) {
  for (Entry* entry : entries) host_.own(entry);
  holds_.emplace(++last_id_, std::move(entries));
  return last_id_;
}

void Directory::release(std::int64_t hold) {
  std::lock_guard lock(mutex_);
  auto node = holds_.extract(hold);
  if (node.empty()) return;
  for (auto entry = node.mapped().rbegin(); entry != node.mapped().rend(); ++entry) host_.disown(*entry);
}

// A key that is in both tiers is one key.
std::int64_t Directory::forget(int group, Keys keys) {
  std::lock_guard lock(mutex_);
  std::int64_t forgotten = 0;
  for (std::size_t i = 0; i < keys.size(); ++i) {
    const bool in_host = host_.forget(group, keys.subspan(i, 1)) > 0;
    const bool on_disk = disk_.forget(group, keys.subspan(i, 1)) > 0;
    forgotten += in_host || on_disk;
  }
  counters_.forgotten_keys += forgotten;
  return forgotten;
}

// The manifest hears of the epoch, which says more than each slot would.
void Directory::reset() {
  std::lock_guard lock(mutex_);
  ++epoch_;
  counters_.forgotten_keys += host_.forget_all();
  (void)disk_.forget_all();
  (void)disk_.take_freed();
  committed_.clear();
  for (auto& keys : waiting_) keys.clear();
}

// A request that looked a key up, in whichever tier it was found, and stores it now was counted when it looked.
void Directory::count_store(int group, Keys keys) {
  if (!disk_.serves(group)) return;
  for (std::size_t i = 0; admission_.by_frequency() && i < keys.size(); ++i) {
    const std::string_view key = keys[i];
    const Entry* known = host_.find(group, key);
    if (!known) known = disk_.find(group, key);
    if (!known || !known->looked_up) admission_.used(group, key);
  }
  const Tier::Kept stored_again(disk_, group, keys, /*stored_again=*/true);
}

// All that host memory has may wait: a caller may want to write only when much does.
void Directory::want_on_disk(const std::vector<Entry*>& entries, bool at_use) {
  if (!disk_open()) return;
  for (Entry* entry : entries) {
    if (at_use && !admission_.at_later_use() && entry->failed_demotions == 0) continue;
    if (entry->wanted_on_disk || (entry->failed_demotions >= kMostDemotions && !disk_takes_)) continue;
    if (disk_.find(entry->group, entry->key.view())) continue;
    std::deque<std::string>& keys = waiting_[entry->group];
    const std::int64_t most = std::max(kMostWaiting, host_.pool().counts(entry->group).capacity);
    if (static_cast<std::int64_t>(keys.size()) >= most || entry->key.view().size() > kMostDiskKeyBytes) {
      ++counters_.undemoted_keys;
      continue;
    }
    entry->wanted_on_disk = true;
    keys.emplace_back(entry->key.view());
  }
}

}  // namespace kvo
