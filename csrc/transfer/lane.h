// All transfers of one direction: a bounded queue, a thread that plans and enqueues, a stream of ours, and the
// transfers whose copies are on the device.
//
// One lane a direction, so that loads never queue behind stores and a stream that is full of stores does not hold up a
// load. The lane's thread keeps only a few thousand copies on the device at a time: a stream that is full makes a
// driver call block inside the driver, where it holds up other threads. Transfers of a lane start and finish in the
// order of submission. Nobody waits for a copy to finish but who asks to: finished ones are noticed ("reaped") whenever
// somebody calls in.
#pragma once
#include <atomic>
#include <condition_variable>
#include <deque>
#include <mutex>
#include <thread>

#include "layout/extents.h"
#include "layout/geometry.h"
#include "transfer/event_pool.h"
#include "transfer/transfer.h"

namespace kvo {

struct LaneOptions {
  Direction direction;
  std::vector<GroupGeometry> groups;
  ExtentPlan extents;
  std::byte* arena = nullptr;
  std::int64_t cut_bytes = 0;
  std::int64_t depth = 256;  // most unfinished transfers
};

struct LaneStats {
  std::int64_t transfers = 0, failures = 0, bytes = 0, rejected = 0, unfinished = 0;
  double seconds = 0;
};

class Lane {
 public:
  static Result<std::shared_ptr<Lane>> create(std::shared_ptr<Device> device, LaneOptions options);
  ~Lane();  // the lane is idle or stop() was called

  Status submit(std::shared_ptr<Transfer> transfer);
  Status before(Transfer& transfer, StreamHandle stream, Deadline deadline);
  bool done(Transfer& transfer);
  Status wait(Transfer& transfer, Deadline deadline);
  bool cancel(Transfer& transfer);  // true: it will never start

  void reap();
  // Finished transfers with a job, each handed out once.
  void take_finished(std::vector<std::shared_ptr<Transfer>>& out);
  LaneStats stats();
  IdPool& ids() { return ids_; }

  // Waits until idle; past the deadline cancels what has not started and says timeout: then copies may still run.
  Status drain(Deadline deadline);
  void stop();     // after a successful drain
  void abandon();  // after a failed one: the thread is left to itself, the caller keeps the lane alive for ever

 private:
  Lane(std::shared_ptr<Device> device, LaneOptions options)
      : device_(std::move(device)), options_(std::move(options)), ids_(4 * options_.depth) {}
  void run() noexcept;
  void serve();
  Status enqueue(Transfer& transfer);
  void plan(Transfer& transfer);  // into copies_
  Status copy_all(Transfer& transfer);
  Status copy_in_steps(std::span<const CopySpan> copies);
  Status make_room(std::int64_t cost);
  Status enqueued_end(Transfer& transfer, Deadline deadline, std::shared_ptr<Event>& end);
  void reap_locked();
  void finish_locked(const std::shared_ptr<Transfer>& transfer, Status status);
  bool idle_locked() const { return queue_.empty() && !starting_ && in_flight_.empty(); }

  const std::shared_ptr<Device> device_;
  const LaneOptions options_;
  std::unique_ptr<Stream> stream_;
  std::shared_ptr<EventPool> events_;
  IdPool ids_;

  std::mutex mutex_;  // guards all below, and the states of the transfers in it
  std::condition_variable changed_;
  std::deque<std::shared_ptr<Transfer>> queue_, in_flight_;
  std::vector<std::shared_ptr<Transfer>> finished_;
  bool starting_ = false, stopping_ = false;
  bool broken_ = false;  // no further transfer is believed
  LaneStats stats_;

  // Scratch of the lane's thread.
  std::vector<std::int64_t> blocks_, slot_offsets_;
  std::vector<Span> spans_;
  std::vector<CopySpan> copies_;
  // The last points of the stream, one every kWindowStep copies: how far the device may lag behind this thread.
  std::deque<std::shared_ptr<Event>> window_;
  std::int64_t window_cost_ = 0;
  std::atomic<int> callers_waiting_{0};  // in before(), for a transfer to be enqueued
  std::atomic<bool> abandoned_{false};
  std::thread thread_;
};

}  // namespace kvo
