#include "ledger/tier.h"

#include <algorithm>
#include <string>

namespace kvo {

namespace {

// A map never rehashes on the serving path up to this many keys (256 MiB of cells).
constexpr std::int64_t kReservedKeys = 1 << 24;

std::uint64_t hash_of(const Entry* entry) { return KeyTable::hash_of(entry->key.view()); }

}  // namespace

Status Tier::open(std::int64_t bytes, const std::vector<std::int64_t>& slot_bytes, std::string_view policy) {
  const auto groups = static_cast<int>(slot_bytes.size());
  const std::int64_t least = groups * *std::max_element(slot_bytes.begin(), slot_bytes.end());
  if (bytes < least) {
    return {Code::invalid, std::string(name_) + " = " + std::to_string(bytes) + " bytes: " + std::to_string(groups) +
                               " KV group(s) with these slots need at least " + std::to_string(least) + ": raise " +
                               name_ + ", or lower blocks_per_chunk"};
  }
  ExtentPlan plan = plan_extents(bytes, slot_bytes);
  groups_.resize(static_cast<std::size_t>(groups));
  for (int group = 0; group < groups; ++group) {
    groups_[group].map.reserve(static_cast<std::size_t>(std::min(kReservedKeys, bytes / plan.slot_bytes[group])));
    groups_[group].policy = make_policy(policy);
    if (!groups_[group].policy)
      return {Code::invalid, "policy '" + std::string(policy) + "': give adaptive, lru, s3fifo or arc"};
  }
  pool_.open(std::move(plan), bytes);
  return {};
}

void Tier::grow(std::int64_t ready_bytes) {
  if (groups_.empty()) return;
  pool_.grow(ready_bytes);
  tell_capacities();
}

// After all that may lend an extent: to a policy a group is as large as the extents that it has.
void Tier::tell_capacities() {
  for (int group = 0; group < pool_.groups(); ++group) {
    const std::int64_t capacity = pool_.counts(group).capacity;
    if (groups_[group].policy->capacity() != capacity) groups_[group].policy->set_capacity(capacity);
  }
}

bool Tier::serves(int group) const {
  return group >= 0 && group < static_cast<int>(groups_.size()) && !over_quarantine();
}

// Something is badly wrong with the medium, so stop handing out more. A disk that hangs holds slots of host memory,
// too: that is the disk's fault and switches it off, while host memory goes on with what is left.
bool Tier::over_quarantine() const { return hung(medium_) || (beside_ && beside_->hung(medium_)); }

std::vector<Entry*> Tier::leading_ready(int group, Keys keys) const {
  std::vector<Entry*> entries;
  if (!serves(group)) return entries;
  entries.reserve(keys.size());
  for (std::size_t start = 0; start < keys.size(); start += KeyTable::kBatch) {
    for (Entry* entry : find_many(group, keys.subspan(start))) {
      if (!entry || entry->state != EntryState::ready) return entries;
      entries.push_back(entry);
    }
  }
  return entries;
}

// Last key first: a prefix without its start is worthless, so its end is evicted first.
void Tier::looked_up(const std::vector<Entry*>& entries) {
  for (auto entry = entries.rbegin(); entry != entries.rend(); ++entry)
    policy_of(*entry).looked_up(**entry, hash_of(*entry));
}

void Tier::used(Entry* entry) { policy_of(entry).stored_again(*entry, hash_of(entry)); }

Tier::Kept::Kept(Tier& tier, int group, Keys keys, bool stored_again) : tier_(tier) {
  std::vector<Entry*> known;
  for (std::size_t start = 0; start < keys.size(); start += KeyTable::kBatch) {
    for (Entry* entry : tier_.find_many(group, keys.subspan(start))) {
      if (entry && entry->state == EntryState::ready) known.push_back(entry);
    }
  }
  for (auto entry = known.rbegin(); entry != known.rend(); ++entry) {
    const bool owned = (*entry)->owners > 0;
    if ((*entry)->pinned && !owned) continue;  // the key is given twice
    if (stored_again) tier_.used(*entry);
    if (owned) continue;
    tier_.policy_of(*entry).pin(**entry);
    pinned_.push_back(*entry);
  }
}

Tier::Kept::~Kept() {
  for (Entry* entry : pinned_)
    if (entry->owners == 0) tier_.policy_of(entry).unpin(*entry);
}

Entry* Tier::fill(int group, std::string_view key) {
  Entry* entry = take_slot(group);
  tell_capacities();
  if (!entry) return nullptr;
  entry->key = key;
  entry->state = EntryState::filling;
  groups_[group].map.insert(entry);
  return entry;
}

// A free slot; else the key that the policy likes least goes; else an extent of the richest group is emptied.
Entry* Tier::take_slot(int group) {
  if (Entry* entry = pool_.take(group)) return entry;
  if (PolicyNode* victim = groups_[group].policy->victim()) {
    evict(static_cast<Entry*>(victim));
    return pool_.take(group);
  }
  const int index = pool_.extent_to_empty(group);
  if (index < 0) return nullptr;
  const SlotPool::Extent& extent = pool_.extents()[index];
  for (std::int64_t i = 0; i < extent.usable; ++i) {
    if (extent.entries[i].state != EntryState::free) evict(&extent.entries[i]);
  }
  pool_.lend(index, group);
  return pool_.take(group);
}

void Tier::evict(Entry* entry) {
  groups_[entry->group].map.erase(entry);
  bury(entry, /*evicted=*/true);
  ++evicted_keys_;
}

void Tier::make_ready(Entry* entry) {
  entry->state = EntryState::ready;
  ++groups_[entry->group].ready_keys;
  policy_of(entry).admit(*entry, hash_of(entry));
  if (entry->owners > 0) policy_of(entry).pin(*entry);
}

bool Tier::restore(const SlotName& name, std::string_view key) {
  if (name.group < 0 || name.group >= static_cast<int>(groups_.size()) || find(name.group, key)) return false;
  Entry* entry = pool_.claim(name.group, name.slot);
  tell_capacities();
  if (!entry) return false;
  entry->key = key;
  groups_[name.group].map.insert(entry);
  make_ready(entry);
  return true;
}

void Tier::own(Entry* entry) {
  if (entry->state == EntryState::ready && !entry->pinned) policy_of(entry).pin(*entry);
  pool_.add_owner(entry);
}

void Tier::disown(Entry* entry) {
  pool_.remove_owner(entry);
  if (entry->owners > 0) return;
  if (entry->state == EntryState::dead) pool_.give(entry);
  if (entry->state == EntryState::ready) policy_of(entry).unpin(*entry);
}

void Tier::drop(Entry* entry) {
  groups_[entry->group].map.erase(entry);
  bury(entry, /*evicted=*/false);
}

void Tier::bury(Entry* entry, bool evicted) {
  if (entry->state == EntryState::ready) {
    --groups_[entry->group].ready_keys;
    policy_of(entry).erase(*entry, hash_of(entry), evicted);
    if (medium_ == Medium::disk) freed_.push_back({entry->group, entry->slot});
  }
  entry->state = EntryState::dead;
  if (entry->owners == 0) pool_.give(entry);
}

std::int64_t Tier::drop_all(const std::vector<Entry*>& entries) {
  std::int64_t dropped = 0;
  for (Entry* entry : entries) {
    if (entry->state == EntryState::dead) continue;
    drop(entry);
    ++dropped;
  }
  return dropped;
}

std::int64_t Tier::forget(int group, Keys keys) {
  if (group < 0 || group >= static_cast<int>(groups_.size())) return 0;
  std::int64_t forgotten = 0;
  for (const std::string_view key : keys) {
    Entry* entry = find(group, key);
    if (!entry) continue;
    drop(entry);
    ++forgotten;
  }
  return forgotten;
}

std::int64_t Tier::forget_all() {
  std::int64_t forgotten = 0;
  for (Group& group : groups_) {
    forgotten += static_cast<std::int64_t>(group.map.size());
    group.map.clear([&](Entry* entry) { bury(entry, /*evicted=*/false); });
  }
  return forgotten;
}

}  // namespace kvo
