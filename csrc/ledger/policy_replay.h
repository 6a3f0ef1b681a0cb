// A cache of keys without bytes: what a policy makes of a list of requests. It calls the policy as the directory does.
#pragma once
#include <cstdint>
#include <memory>
#include <span>
#include <unordered_map>
#include <vector>

#include "ledger/eviction_policy.h"

namespace kvo {

class PolicyReplay {
 public:
  PolicyReplay(std::unique_ptr<EvictionPolicy> policy, std::int64_t entries);

  // Looks a prefix of keys up and stores all of it. Returns how many leading keys were there.
  std::int64_t request(std::span<const std::uint64_t> keys);
  std::int64_t size() const { return static_cast<std::int64_t>(entries_.size()); }
  bool contains(std::uint64_t key) const { return entries_.contains(key); }
  const EvictionPolicy& policy() const { return *policy_; }

 private:
  struct Entry : PolicyNode {
    std::uint64_t key = 0;
  };

  std::unique_ptr<EvictionPolicy> policy_;
  std::int64_t capacity_;
  std::unordered_map<std::uint64_t, Entry> entries_;
};

}  // namespace kvo
