// The mover's GPU half: checks requests, marks the caller's stream, hands transfers to the lane of their direction.
//
// The engine owns the arena and both lanes. close() drains the lanes and then frees the arena; past its deadline lanes
// and arena are leaked on purpose, since copies may still run. A transfer handle keeps its lane, never the arena.
#pragma once
#include <array>
#include <atomic>

#include "base/owner_process.h"
#include "memory/arena.h"
#include "transfer/lane.h"
#include "transfer/request_check.h"

namespace kvo {

// A transfer and the lane that runs it: what callers hold.
struct TransferHandle {
  OwnerProcess owner;
  std::shared_ptr<Lane> lane;
  std::shared_ptr<Transfer> transfer;
};

struct SubmitOptions {
  Direction direction = Direction::store;
  std::int64_t job = 0;
  StreamHandle stream = 0;       // marked now,
  std::shared_ptr<Event> after;  // unless a mark made earlier is given
};

class Engine {
 public:
  static Result<std::unique_ptr<Engine>> create(std::shared_ptr<Device> device, std::shared_ptr<Arena> arena,
                                                std::vector<GroupGeometry> groups, std::int64_t queue_depth);
  ~Engine();

  Result<std::shared_ptr<Event>> mark(StreamHandle stream);
  Result<TransferHandle> submit(const Request& request, const SubmitOptions& options);
  Result<std::vector<std::shared_ptr<Transfer>>> poll();
  Result<LaneStats> stats(Direction direction);
  Status usable() const;  // not ok: closed or forked
  // ok: all freed. timeout: copies still run, their memory is leaked. Calling it again does nothing.
  Status close(Deadline deadline);

  const ExtentPlan& extents() const { return extents_; }
  Result<std::byte*> slot_address(int group, std::int64_t slot) const;  // of a slot that is ready
  const OwnerProcess& owner() const { return owner_; }
  bool is_cuda() const { return device_->is_cuda(); }
  std::int64_t ready_bytes() const { return arena_->ready_bytes(); }

 private:
  Engine(std::shared_ptr<Device> device, std::shared_ptr<Arena> arena, std::vector<GroupGeometry> groups);
  std::shared_ptr<Lane>& lane(Direction direction) { return lanes_[static_cast<int>(direction)]; }

  const OwnerProcess owner_;
  const std::shared_ptr<Device> device_;
  const std::shared_ptr<Arena> arena_;
  const std::vector<GroupGeometry> groups_;
  const ExtentPlan extents_;
  std::array<std::shared_ptr<Lane>, 2> lanes_;
  std::shared_ptr<EventPool> marks_;

  std::mutex mutex_;  // submits, one at a time; close() takes it to wait for the last one
  RequestCheck check_;
  std::atomic<bool> closed_{false};
};

}  // namespace kvo
