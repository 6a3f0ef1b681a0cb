#include "ledger/policy_arc.h"

#include <algorithm>

namespace kvo {

void ArcPolicy::resize(std::int64_t entries) {
  entries_ = static_cast<double>(std::max<std::int64_t>(1, entries));
  once_target_ = std::min(once_target_, entries_);
  once_ghosts_.set_capacity(entries);
  again_ghosts_.set_capacity(entries);
}

void ArcPolicy::enter(PolicyNode& node, std::uint64_t hash) {
  const double once = static_cast<double>(once_ghosts_.size()), again = static_cast<double>(again_ghosts_.size());
  node.queue = kAgain;
  if (once_ghosts_.take(hash)) {
    once_target_ = std::min(entries_, once_target_ + std::max(1.0, again / once));
  } else if (again_ghosts_.take(hash)) {
    once_target_ = std::max(0.0, once_target_ - std::max(1.0, once / again));
  } else {
    node.queue = kOnce;
  }
}

PolicyNode* ArcPolicy::victim() {
  PolicyNode* once = queues_[kOnce].front();
  PolicyNode* again = queues_[kAgain].front();
  if (!once || !again) return once ? once : again;
  return static_cast<double>(queues_[kOnce].size()) > once_target_ ? once : again;
}

void ArcPolicy::remember(const PolicyNode& node, std::uint64_t hash) {
  (node.queue == kOnce ? once_ghosts_ : again_ghosts_).insert(hash, 0);
}

}  // namespace kvo
