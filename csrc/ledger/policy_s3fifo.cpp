#include "ledger/policy_s3fifo.h"

#include <algorithm>

namespace kvo {

namespace {

constexpr int kMaxUses = 3;
constexpr int kMaxSteps = 256;  // of one search for a victim; then the one at hand goes

}  // namespace

void S3FifoPolicy::resize(std::int64_t entries) {
  small_entries_ = std::max<std::int64_t>(1, entries / 10);
  ghosts_.set_capacity(entries);
}

void S3FifoPolicy::enter(PolicyNode& node, std::uint64_t hash) { node.queue = ghosts_.take(hash) ? kMain : kSmall; }

void S3FifoPolicy::use(PolicyNode& node, std::uint64_t) {
  node.uses = static_cast<std::uint8_t>(std::min(node.uses + 1, kMaxUses));
}

PolicyNode* S3FifoPolicy::victim() {
  PolicyNode* node = nullptr;
  for (int step = 0; step < kMaxSteps; ++step) {
    const bool from_small = queues_[kSmall].size() >= small_entries_ || !queues_[kMain].front();
    node = queues_[from_small ? kSmall : kMain].front();
    if (!node || node->uses == 0) break;
    node->uses = from_small ? 0 : static_cast<std::uint8_t>(node->uses - 1);
    move_to_back(*node, kMain);
  }
  return node;
}

void S3FifoPolicy::remember(const PolicyNode& node, std::uint64_t hash) {
  if (node.queue == kSmall) ghosts_.insert(hash, 0);
}

}  // namespace kvo
