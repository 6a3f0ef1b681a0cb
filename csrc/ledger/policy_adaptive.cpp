#include "ledger/policy_adaptive.h"

#include <algorithm>

namespace kvo {

namespace {

constexpr std::int64_t kGhosts = 5, kMinGhosts = 8192;
constexpr std::int64_t kMinLearnUses = 256;

int class_after(int key_class) { return std::min(key_class + 1, ReuseModel::kClasses - 1); }

}  // namespace

void AdaptivePolicy::resize(std::int64_t entries) {
  ghosts_.set_capacity(std::max(kMinGhosts, kGhosts * entries));
  reuse_.set_capacity(entries);
  learn_uses_ = static_cast<std::uint32_t>(std::clamp<std::int64_t>(entries / 4, kMinLearnUses, 1 << 30));
}

void AdaptivePolicy::enter(PolicyNode& node, std::uint64_t hash) {
  const std::optional<int> class_before = ghosts_.take(hash);
  node.queue = static_cast<std::uint8_t>(class_before ? class_after(*class_before) : 0);
  count_use(hash, node.queue);
}

void AdaptivePolicy::use(PolicyNode& node, std::uint64_t hash) {
  const int key_class = class_after(node.queue);
  count_use(hash, key_class);
  move_to_back(node, key_class);
}

void AdaptivePolicy::count_use(std::uint64_t hash, int key_class) {
  reuse_.use(hash, key_class, ++now_);
  if (now_ - next_learning_ >= 1u << 31) return;  // not yet; the clock may wrap
  reuse_.learn(now_);
  next_learning_ = now_ + learn_uses_;
}

PolicyNode* AdaptivePolicy::victim() {
  PolicyNode* least = nullptr;
  float least_worth = 0;
  for (int key_class = 0; key_class < ReuseModel::kClasses; ++key_class) {
    PolicyNode* node = queues_[key_class].front();
    if (!node) continue;
    const float worth = reuse_.worth(key_class, now_ - node->used_at);
    if (least && worth >= least_worth) continue;
    least = node;
    least_worth = worth;
  }
  return least;
}

}  // namespace kvo
