// Which ready key goes next when a tier is full. One policy per group and tier; single-threaded, under its owner's
// mutex.
//
// A node is embedded in the owner's entry. The owner admits it when its bytes are ready, reports uses, pins it while
// somebody reads it, and erases it. Among several keys of one prefix, call for the last key first: a prefix without its
// start is worthless, so of keys used together those told first go first.
#pragma once
#include <array>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <string_view>

namespace kvo {

struct PolicyNode {
  PolicyNode* previous = nullptr;
  PolicyNode* next = nullptr;
  std::uint32_t used_at = 0;  // adaptive: the policy's clock at its last use; it may wrap
  std::uint8_t queue = 0;
  std::uint8_t uses = 0;  // S3-FIFO: uses since it was last looked at, at most 3
  bool pinned = false;    // in no queue
  bool looked_up = false;
};
static_assert(sizeof(PolicyNode) <= 24);

class NodeQueue {
 public:
  std::int64_t size() const { return size_; }
  PolicyNode* front() const { return front_; }

  void push_back(PolicyNode& node) {
    node.next = nullptr;
    node.previous = back_;
    (back_ ? back_->next : front_) = &node;
    back_ = &node;
    ++size_;
  }

  void remove(PolicyNode& node) {
    (node.previous ? node.previous->next : front_) = node.next;
    (node.next ? node.next->previous : back_) = node.previous;
    node.previous = node.next = nullptr;
    --size_;
  }

 private:
  PolicyNode* front_ = nullptr;  // next to go
  PolicyNode* back_ = nullptr;
  std::int64_t size_ = 0;
};

// `hash`: 64 well-mixed bits of the key, the same in every call for that key.
class EvictionPolicy {
 public:
  virtual ~EvictionPolicy() = default;

  // How many entries fit, 0 at first. It may change at any time; what is remembered of evicted keys may be lost then.
  void set_capacity(std::int64_t entries) {
    capacity_ = entries;
    resize(entries);
  }
  std::int64_t capacity() const { return capacity_; }

  void admit(PolicyNode& node, std::uint64_t hash);  // its bytes became ready
  // A request uses the key. It looks it up, perhaps again and again while it waits, and stores it again after computing
  // the rest: that is one use. Without a lookup (the start of its prefix was on the GPU) storing it again is the use.
  void looked_up(PolicyNode& node, std::uint64_t hash);
  void stored_again(PolicyNode& node, std::uint64_t hash);

  // Between the two, victim() neither returns the node nor spends time on it. Not nested: the owner counts readers.
  void pin(PolicyNode& node);
  void unpin(PolicyNode& node);

  virtual PolicyNode* victim() = 0;  // null: all are pinned. The node stays until it is erased.
  // Also when pinned. `evicted`: to make room, so that its coming back would be a lesson; else it was dropped.
  void erase(PolicyNode& node, std::uint64_t hash, bool evicted);

  std::int64_t evictable() const {  // entries that are not pinned
    std::int64_t count = 0;
    for (const NodeQueue& queue : queues_) count += queue.size();
    return count;
  }
  virtual std::size_t bytes() const { return 0; }  // beyond the nodes: what is remembered of keys that are gone

 protected:
  static constexpr int kQueues = 4;

  virtual void resize(std::int64_t entries) = 0;
  virtual void enter(PolicyNode& node, std::uint64_t hash) = 0;  // sets node.queue
  virtual void use(PolicyNode& node, std::uint64_t hash) = 0;
  virtual void touch(PolicyNode& node) { move_to_back(node, node.queue); }  // the same use goes on
  virtual void before_link(PolicyNode&) {}
  virtual void remember(const PolicyNode&, std::uint64_t) {}

  void move_to_back(PolicyNode& node, int queue);

  std::array<NodeQueue, kQueues> queues_;

 private:
  std::int64_t capacity_ = 0;
};

// "lru", "s3fifo", "arc" or "adaptive" (the default: policy_adaptive.h); null for any other name.
std::unique_ptr<EvictionPolicy> make_policy(std::string_view name);

}  // namespace kvo
