#include "ledger/eviction_policy.h"

#include "ledger/policy_adaptive.h"
#include "ledger/policy_arc.h"
#include "ledger/policy_lru.h"
#include "ledger/policy_s3fifo.h"

namespace kvo {

void EvictionPolicy::admit(PolicyNode& node, std::uint64_t hash) {
  node = {};
  enter(node, hash);
  before_link(node);
  queues_[node.queue].push_back(node);
}

void EvictionPolicy::looked_up(PolicyNode& node, std::uint64_t hash) {
  if (node.looked_up) return touch(node);
  node.looked_up = true;
  use(node, hash);
}

void EvictionPolicy::stored_again(PolicyNode& node, std::uint64_t hash) {
  if (!node.looked_up) return use(node, hash);
  node.looked_up = false;
  touch(node);
}

void EvictionPolicy::pin(PolicyNode& node) {
  queues_[node.queue].remove(node);
  node.pinned = true;
}

void EvictionPolicy::unpin(PolicyNode& node) {
  node.pinned = false;
  before_link(node);
  queues_[node.queue].push_back(node);
}

void EvictionPolicy::erase(PolicyNode& node, std::uint64_t hash, bool evicted) {
  if (!node.pinned) queues_[node.queue].remove(node);
  if (evicted) remember(node, hash);
}

void EvictionPolicy::move_to_back(PolicyNode& node, int queue) {
  if (!node.pinned) queues_[node.queue].remove(node);
  node.queue = static_cast<std::uint8_t>(queue);
  if (node.pinned) return;
  before_link(node);
  queues_[queue].push_back(node);
}

std::unique_ptr<EvictionPolicy> make_policy(std::string_view name) {
  if (name == "lru") return std::make_unique<LruPolicy>();
  if (name == "s3fifo") return std::make_unique<S3FifoPolicy>();
  if (name == "arc") return std::make_unique<ArcPolicy>();
  if (name == "adaptive") return std::make_unique<AdaptivePolicy>();
  return nullptr;
}

}  // namespace kvo
