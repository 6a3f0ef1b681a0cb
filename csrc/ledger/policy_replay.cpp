#include "ledger/policy_replay.h"

#include <utility>

namespace kvo {

namespace {

// splitmix64's last step: neighbouring numbers get hashes that have nothing to do with each other.
std::uint64_t hash_of(std::uint64_t key) {
  key += 0x9e3779b97f4a7c15;
  key = (key ^ (key >> 30)) * 0xbf58476d1ce4e5b9;
  key = (key ^ (key >> 27)) * 0x94d049bb133111eb;
  return key ^ (key >> 31);
}

}  // namespace

PolicyReplay::PolicyReplay(std::unique_ptr<EvictionPolicy> policy, std::int64_t entries)
    : policy_(std::move(policy)), capacity_(entries) {
  policy_->set_capacity(entries);
}

std::int64_t PolicyReplay::request(std::span<const std::uint64_t> keys) {
  std::size_t hits = 0;
  while (hits < keys.size() && entries_.contains(keys[hits])) ++hits;
  for (std::size_t i = hits; i-- > 0;) policy_->looked_up(entries_[keys[i]], hash_of(keys[i]));

  std::vector<Entry*> known, filling;  // last key first
  for (std::size_t i = keys.size(); i-- > 0;) {
    const auto found = entries_.find(keys[i]);
    if (found == entries_.end() || found->second.pinned) continue;  // pinned: twice in this request
    policy_->stored_again(found->second, hash_of(keys[i]));
    policy_->pin(found->second);
    known.push_back(&found->second);
  }
  for (const std::uint64_t key : keys) {
    if (entries_.contains(key)) continue;
    if (size() == capacity_) {
      auto* victim = static_cast<Entry*>(policy_->victim());
      if (!victim) break;
      const std::uint64_t gone = victim->key;
      policy_->erase(*victim, hash_of(gone), true);
      entries_.erase(gone);
    }
    Entry& entry = entries_[key];
    entry.key = key;
    filling.push_back(&entry);
  }
  for (std::size_t i = filling.size(); i-- > 0;) policy_->admit(*filling[i], hash_of(filling[i]->key));
  for (Entry* entry : known) policy_->unpin(*entry);
  return static_cast<std::int64_t>(hits);
}

}  // namespace kvo
