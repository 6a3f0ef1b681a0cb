#pragma once
#include "ledger/eviction_policy.h"

namespace kvo {

class LruPolicy final : public EvictionPolicy {
 public:
  PolicyNode* victim() override { return queues_[0].front(); }

 private:
  void resize(std::int64_t) override {}
  void enter(PolicyNode& node, std::uint64_t) override { node.queue = 0; }
  void use(PolicyNode& node, std::uint64_t) override { touch(node); }
};

}  // namespace kvo
