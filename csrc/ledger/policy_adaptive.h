// The default. Keys used once, twice and more often stand in three queues by recency; of the three oldest, the one
// whose slot earns least goes. What a slot earns is learned while serving (policy_reuse.h), so the policy is near LRU
// where recency decides, and keeps only keys that have proved themselves where memory is short. It remembers evicted
// keys and their class for five capacities.
#pragma once
#include "ledger/eviction_policy.h"
#include "ledger/policy_ghost.h"
#include "ledger/policy_reuse.h"

namespace kvo {

class AdaptivePolicy final : public EvictionPolicy {
 public:
  AdaptivePolicy() { AdaptivePolicy::resize(1); }
  PolicyNode* victim() override;
  std::size_t bytes() const override { return ghosts_.bytes() + reuse_.bytes(); }

 private:
  void resize(std::int64_t entries) override;
  void enter(PolicyNode& node, std::uint64_t hash) override;
  void use(PolicyNode& node, std::uint64_t hash) override;
  void before_link(PolicyNode& node) override { node.used_at = now_; }
  void remember(const PolicyNode& node, std::uint64_t hash) override { ghosts_.insert(hash, node.queue); }
  void count_use(std::uint64_t hash, int key_class);

  std::uint32_t now_ = 0;  // uses so far
  std::uint32_t learn_uses_ = 1, next_learning_ = 0;
  GhostTable ghosts_;
  ReuseModel reuse_;
};

}  // namespace kvo
