// Refuses bad requests on the caller's thread, before anything is queued, and keeps a copy of their ids.
#pragma once
#include <cstdlib>
#include <memory>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include "layout/extents.h"
#include "layout/geometry.h"
#include "transfer/id_pool.h"

namespace kvo {

// Which ids came up in the current round. A byte an id: the number of the round that last saw it. Starting a round
// clears 1/128 of the table, so that no number is older than that when its turn comes again after 255 rounds.
class SeenIds {
 public:
  explicit SeenIds(std::int64_t limit)
      : limit_(limit), last_round_(static_cast<std::uint8_t*>(std::calloc(limit ? limit : 1, 1))) {}
  std::int64_t limit() const { return limit_; }
  bool usable() const { return last_round_ != nullptr; }
  void begin_round();
  std::uint8_t round() const { return round_; }
  // Whether `id` was seen in this round; now it is.
  bool see(std::int64_t id) { return std::exchange(last_round_.get()[id], round_) == round_; }
  std::uint8_t* last_round() { return last_round_.get(); }  // of each id below limit()

 private:
  struct Free {
    void operator()(std::uint8_t* memory) const { std::free(memory); }
  };
  std::int64_t limit_, next_cleared_ = 0;
  std::uint8_t round_ = 0;
  std::unique_ptr<std::uint8_t, Free> last_round_;  // calloc: pages that are never asked about cost nothing
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
  Status check(const Request& request, std::int64_t ready_bytes, RequestIds& ids);
  Status check_slot(int group, std::int64_t slot, std::int64_t ready_bytes) const;

 private:
  Status check_shape(const Request& request) const;
  Status explain(const Request& request, std::int64_t ready_bytes);
  Status check_group(int group) const;

  const std::vector<GroupGeometry>& groups_;
  const ExtentPlan& extents_;
  std::vector<SeenIds> blocks_seen_, slots_seen_;  // by group
};

}  // namespace kvo
