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
  bool is_cuda = false;
};

struct SubmitOptions {
  Direction direction = Direction::store;
  std::int64_t job = 0;
  StreamHandle stream = 0;       // marked now,
  std::shared_ptr<Event> after;  // unless a mark made earlier is given
  std::optional<Path> path;      // empty: chosen by the table of paths
};

struct EngineOptions {
  std::int64_t queue_depth = 256;
  std::int64_t ring_bytes = 0;  // of both directions together; less where little device memory is free
  StagingOptions staging;
  int kernel_ctas = 16;
  Urgency urgency = Urgency::high;
};

class Engine {
 public:
  static Result<std::unique_ptr<Engine>> create(std::shared_ptr<Device> device, std::shared_ptr<Arena> arena,
                                                std::vector<GroupGeometry> groups, const EngineOptions& options);
  ~Engine();

  Result<std::shared_ptr<Event>> mark(StreamHandle stream);
  Result<TransferHandle> submit(const Request& request, const SubmitOptions& options);
  Result<std::vector<std::shared_ptr<Transfer>>> poll();
  Result<LaneStats> stats(Direction direction);
  Status usable() const;  // not ok: closed or forked
  // ok: all freed. timeout: copies still run, their memory is leaked. Calling it again does nothing.
  Status close(Deadline deadline);

  bool has_path(Path path) const { return path != Path::staged || ring_bytes() > 0; }
  std::int64_t ring_bytes() const { return ring_bytes_; }
  void set_path_table(const std::vector<PathRow>& rows);
  // What each path takes here, measured between ring and arena: never touches the tensors. Before anything is served:
  // it writes to slots. Empty without a ring, or where the ready part of the arena is too small.
  Result<std::vector<PathRow>> calibrate();
  // Bytes a second of large copies, in the same way; 0 where there is no room for them.
  Result<double> contiguous_bytes_per_s(Direction direction);

  const ExtentPlan& extents() const { return extents_; }
  Result<std::byte*> slot_address(int group, std::int64_t slot) const;  // of a slot that is ready
  const OwnerProcess& owner() const { return owner_; }
  bool is_cuda() const { return device_->is_cuda(); }
  std::int64_t ready_bytes() const { return arena_->ready_bytes(); }

 private:
  struct Sample;
  Engine(std::shared_ptr<Device> device, std::shared_ptr<Arena> arena, std::vector<GroupGeometry> groups);
  Status check_path(const Lane& lane, std::optional<Path> path, int group) const;
  Status make_lanes(const EngineOptions& options);
  Status measure(std::vector<Sample>& samples);
  Result<double> measure_once(const Sample& sample);
  std::shared_ptr<Lane>& lane(Direction direction) { return lanes_[static_cast<int>(direction)]; }

  const OwnerProcess owner_;
  const std::shared_ptr<Device> device_;
  const std::shared_ptr<Arena> arena_;
  const std::vector<GroupGeometry> groups_;
  const ExtentPlan extents_;
  std::int64_t ring_bytes_ = 0;
  std::array<std::shared_ptr<Lane>, 2> lanes_;
  std::shared_ptr<EventPool> marks_;

  std::mutex mutex_;  // submits, one at a time; close() takes it to wait for the last one
  RequestCheck check_;
  std::atomic<bool> closed_{false};
};

}  // namespace kvo
