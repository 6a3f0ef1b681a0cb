// Refuses bad requests on the caller's thread, before anything is queued, and keeps a copy of their ids.
#pragma once
#include <cstdlib>
#include <memory>
#include <span>
#include <string>
#include <vector>

#include "layout/extents.h"
#include "layout/geometry.h"
#include "transfer/id_pool.h"

namespace kvo {

// Copies ids in [0, limit) and finds repeated ones in one pass, without clearing anything between calls.
class DuplicateFinder {
 public:
  explicit DuplicateFinder(std::int64_t limit)
      : limit_(limit), seen_(static_cast<std::uint32_t*>(std::calloc(limit ? limit : 1, sizeof(std::uint32_t)))) {}
  std::int64_t limit() const { return limit_; }
  bool usable() const { return seen_ != nullptr; }
  // Ids from `first` on, into `out`, which has as many. Returns the position of the first one that is not below `limit`
  // or is repeated; ids.size() if none.
  std::int64_t copy(std::span<const std::int64_t> ids, std::int64_t first, std::int64_t limit, IdList& out);

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
  bool usable() const;  // false: there was no memory for the tables
  Status check(const Request& request, std::int64_t ready_bytes, IdList& blocks, IdList& slots);
  Status check_slot(int group, std::int64_t slot, std::int64_t ready_bytes) const;

 private:
  Status check_shape(const Request& request) const;
  Status bad_block(const Request& request, std::int64_t position) const;
  Status check_group(int group) const;
  std::int64_t ready_slots(int group, std::int64_t ready_bytes) const;

  const std::vector<GroupGeometry>& groups_;
  const ExtentPlan& extents_;
  std::vector<DuplicateFinder> blocks_seen_, slots_seen_;  // by group
};

}  // namespace kvo
