#include "ledger/policy_ghost.h"

#include <algorithm>
#include <cstdlib>

namespace kvo {

namespace {

constexpr int kSlotsUsed = 14;             // of a bucket's 16
constexpr std::int64_t kGenerations = 64;  // to a capacity; far fewer than the 256 that 8 bits tell apart

std::uint32_t mark_of(std::uint64_t hash) { return std::max(static_cast<std::uint32_t>(hash) >> 10, 1u) << 10; }

}  // namespace

void GhostTable::set_capacity(std::int64_t keys) {
  if (std::abs(keys - capacity_) * 8 <= capacity_) return;
  capacity_ = std::max<std::int64_t>(1, keys);
  std::vector<Bucket>(static_cast<std::size_t>((capacity_ + kSlotsUsed - 1) / kSlotsUsed)).swap(buckets_);
  size_ = inserted_ = 0;
}

// Chosen by the high half of the hash and by a mixture of both; marks are from the low half.
std::array<GhostTable::Bucket*, 2> GhostTable::buckets_of(std::uint64_t hash) {
  const std::uint64_t mixed = hash * 0x9e3779b97f4a7c15;
  return {&buckets_[(hash >> 32) * buckets_.size() >> 32], &buckets_[(mixed >> 32) * buckets_.size() >> 32]};
}

std::uint32_t GhostTable::generation() const {
  return static_cast<std::uint32_t>(inserted_ * kGenerations / capacity_) & 0xff;
}

void GhostTable::forget_old(Bucket& bucket) const {
  for (auto slot = bucket.rbegin(); slot != bucket.rend(); ++slot) {
    if (*slot != 0 && ((generation() - *slot) & 0xff) <= kGenerations) return;
    *slot = 0;
  }
}

void GhostTable::insert(std::uint64_t hash, int tag) {
  const auto [first, second] = buckets_of(hash);
  forget_old(*first);
  forget_old(*second);
  Bucket& bucket = std::ranges::count(*first, 0u) >= std::ranges::count(*second, 0u) ? *first : *second;
  std::copy_backward(bucket.begin(), bucket.end() - 1, bucket.end());
  bucket.front() = mark_of(hash) | static_cast<std::uint32_t>(tag) << 8 | generation();
  ++inserted_;
  size_ = std::min(size_ + 1, capacity_);
}

std::optional<int> GhostTable::take(std::uint64_t hash) {
  const std::uint32_t mark = mark_of(hash);
  for (Bucket* bucket : buckets_of(hash)) {
    forget_old(*bucket);
    const auto found = std::ranges::find(*bucket, mark, [](std::uint32_t slot) { return slot & ~0x3ffu; });
    if (found == bucket->end()) continue;
    const int tag = static_cast<int>(*found >> 8 & 3u);
    std::copy(found + 1, bucket->end(), found);
    bucket->back() = 0;
    --size_;
    return tag;
  }
  return std::nullopt;
}

}  // namespace kvo
