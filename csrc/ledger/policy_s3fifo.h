// S3-FIFO: new keys pass a small queue (a tenth); those used there, or back soon after they left it, enter the main
// queue, where each use is worth another round.
#pragma once
#include "ledger/eviction_policy.h"
#include "ledger/policy_ghost.h"

namespace kvo {

class S3FifoPolicy final : public EvictionPolicy {
 public:
  PolicyNode* victim() override;
  std::size_t bytes() const override { return ghosts_.bytes(); }

 private:
  enum Queue : std::uint8_t { kSmall, kMain };

  void resize(std::int64_t entries) override;
  void enter(PolicyNode& node, std::uint64_t hash) override;
  void use(PolicyNode& node, std::uint64_t hash) override;
  void touch(PolicyNode&) override {}
  void remember(const PolicyNode& node, std::uint64_t hash) override;

  std::int64_t small_entries_ = 1;
  GhostTable ghosts_;
};

}  // namespace kvo
