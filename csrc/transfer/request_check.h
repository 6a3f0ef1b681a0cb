// Refuses bad requests on the caller's thread, before anything is queued.
#pragma once
#include <cstdlib>
#include <memory>
#include <span>
#include <string>
#include <vector>

#include "layout/extents.h"
#include "layout/geometry.h"

namespace kvo {

// Finds repeated ids among [0, limit) in one pass, without clearing anything between calls.
class DuplicateFinder {
 public:
  explicit DuplicateFinder(std::int64_t limit)
      : limit_(limit), seen_(static_cast<std::uint32_t*>(std::calloc(limit ? limit : 1, sizeof(std::uint32_t)))) {}
  void begin();
  bool in_range(std::int64_t id) const { return id >= 0 && id < limit_; }
  bool repeated(std::int64_t id) { return std::exchange(seen_.get()[id], round_) == round_; }
  std::int64_t limit() const { return limit_; }

 private:
  struct Free {
    void operator()(std::uint32_t* memory) const { std::free(memory); }
  };
  std::int64_t limit_;
  std::uint32_t round_ = 0;
  std::unique_ptr<std::uint32_t, Free> seen_;  // calloc: pages that are never asked about cost nothing
};

struct Request {
  int group = 0;
  std::span<const std::int64_t> blocks, slots;
  std::int64_t skip_blocks = 0;
};

// Not thread-safe: the engine calls it under its submit mutex.
class RequestCheck {
 public:
  RequestCheck(const std::vector<GroupGeometry>& groups, const ExtentPlan& extents, std::int64_t arena_bytes);
  // On success fills `slot_offsets` with the arena offset of each slot.
  Status check(const Request& request, std::int64_t ready_bytes, std::vector<std::int64_t>& slot_offsets);

 private:
  Status check_shape(const Request& request) const;
  Status check_blocks(const Request& request);
  Status check_slots(const Request& request, std::int64_t ready_bytes, std::vector<std::int64_t>& slot_offsets);

  const std::vector<GroupGeometry>& groups_;
  const ExtentPlan& extents_;
  std::vector<DuplicateFinder> blocks_seen_, slots_seen_;  // by group
};

}  // namespace kvo
