// ARC: keys used once and keys used again, each in a queue by recency; keys that come back after eviction move the
// share of the two. The ghosts of each queue have room for a whole capacity.
#pragma once
#include "ledger/eviction_policy.h"
#include "ledger/policy_ghost.h"

namespace kvo {

class ArcPolicy final : public EvictionPolicy {
 public:
  PolicyNode* victim() override;
  std::size_t bytes() const override { return once_ghosts_.bytes() + again_ghosts_.bytes(); }

 private:
  enum Queue : std::uint8_t { kOnce, kAgain };

  void resize(std::int64_t entries) override;
  void enter(PolicyNode& node, std::uint64_t hash) override;
  void use(PolicyNode& node, std::uint64_t) override { move_to_back(node, kAgain); }
  void remember(const PolicyNode& node, std::uint64_t hash) override;

  double entries_ = 1;
  double once_target_ = 0;
  GhostTable once_ghosts_, again_ghosts_;
};

}  // namespace kvo
