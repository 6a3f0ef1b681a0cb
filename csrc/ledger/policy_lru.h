#pragma once
#include "ledger/eviction_policy.h"

namespace kvo {

class LruPolicy final : public EvictionPolicy {
 public:
  void set_capacity(std::int64_t) override {}
  PolicyNode* victim() override { return queues_[0].front(); }

 private:
  void enter(PolicyNode& node, std::uint64_t) override { node.queue = 0; }
  void use(PolicyNode& node, std::uint64_t) override { touch(node); }
};

}  // namespace kvo
