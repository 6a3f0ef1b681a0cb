// All transfers of one direction: a bounded queue, a thread that plans and enqueues, two streams of ours (one for the
// copy engine, one for kernels between pages and ring), and the transfers whose copies are on the device.
//
// One lane a direction, so that loads never queue behind stores and a stream that is full of stores does not hold up a
// load. The lane's thread keeps only a few thousand copies on the device at a time: a stream that is full makes a
// driver call block inside the driver, where it holds up other threads. Transfers of a lane start and finish in the
// order of submission, whatever their paths: the last step of each runs after the last step of the one before. Nobody
// waits for a copy to finish but who asks to: finished ones are noticed ("reaped") whenever somebody calls in.
#pragma once
#include <atomic>
#include <condition_variable>
#include <deque>
#include <mutex>
#include <thread>

#include "layout/extents.h"
#include "layout/geometry.h"
#include "transfer/event_pool.h"
#include "transfer/staging.h"
#include "transfer/transfer.h"

namespace kvo {

struct LaneOptions {
  Direction direction;
  std::vector<GroupGeometry> groups;
  ExtentPlan extents;
  std::byte* arena = nullptr;
  std::int64_t cut_bytes = 0;
  std::int64_t depth = 256;         // most unfinished transfers
  int kernel_ctas = 16;             // of path `kernel`
  Urgency urgency = Urgency::high;  // of the stream between pages and ring
};

struct LaneStats {
  std::int64_t transfers = 0, failures = 0, bytes = 0, rejected = 0, unfinished = 0;
  double seconds = 0;
};

class Lane {
 public:
  // staging: may be null, then there is no path `staged`.
  static Result<std::shared_ptr<Lane>> create(std::shared_ptr<Device> device, LaneOptions options,
                                              std::unique_ptr<Staging> staging);
  ~Lane();  // the lane is idle or stop() was called

  // A transfer will be submitted as soon as its ids are checked: the thread wakes up meanwhile.
  void announce();
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
  bool can_take(Path path, int group) const;
  void set_path_table(PathTable table);  // before the first transfer that is to use it
  std::int64_t ready_slots(int group, std::int64_t ready_bytes) const {
    return options_.extents.slots_below(group, ready_bytes);
  }

  // Waits until idle; past the deadline cancels what has not started and says timeout: then copies may still run.
  Status drain(Deadline deadline);
  void stop();     // after a successful drain
  void abandon();  // after a failed one: the thread is left to itself, the caller keeps the lane alive for ever

 private:
  // Where a transfer's first and last step run.
  struct Route {
    Stream *first, *last;
  };
  // What the paths need to know of a group.
  struct Group {
    std::int64_t first_page, page_count, joined_pages, longest_page_bytes, block_bytes, chunk_bytes, blocks_per_chunk;
  };

  Lane(std::shared_ptr<Device> device, LaneOptions options, std::unique_ptr<Staging> staging)
      : device_(std::move(device)),
        options_(std::move(options)),
        staging_(std::move(staging)),
        ids_(4 * options_.depth),
        selector_(options_.direction) {}
  Status make_page_table();
  void run() noexcept;
  void serve();
  void stay_awake(std::unique_lock<std::mutex>& lock);
  Status enqueue(Transfer& transfer);
  void locate(Transfer& transfer);  // into blocks_, slots_
  PathChoice choose(const Transfer& transfer);
  Route route_of(Path path) const;
  Status copy_all(Transfer& transfer);
  Status copy_by_dma(Transfer& transfer);
  Status copy_by_kernel(const Transfer& transfer, std::size_t chunks);
  Status copy_staged(const Transfer& transfer);
  PageCopy page_copy(const Transfer& transfer) const;
  void plan(const Transfer& transfer);  // into copies_
  Status record_end(Event& end, bool complete);
  Status copy_in_steps(std::span<const CopySpan> copies);
  Status make_room(std::int64_t cost);
  Status enqueued_end(Transfer& transfer, Deadline deadline, std::shared_ptr<Event>& end);
  void reap_locked();
  void finish_locked(const std::shared_ptr<Transfer>& transfer, Status status);
  bool idle_locked() const { return queue_.empty() && !starting_ && in_flight_.empty(); }

  const std::shared_ptr<Device> device_;
  const LaneOptions options_;
  std::unique_ptr<Staging> staging_;  // until stop(): handles of transfers keep lanes, but no GPU memory
  std::vector<Group> groups_;
  std::vector<PageEntry> page_entries_;  // of all groups, and the same on the device
  std::unique_ptr<DeviceMemory> page_table_;
  std::unique_ptr<Stream> copy_stream_, page_stream_;  // after what they may still be using
  std::shared_ptr<EventPool> events_;
  IdPool ids_;

  std::mutex mutex_;  // guards all below, and the states of the transfers in it
  std::condition_variable changed_;
  std::deque<std::shared_ptr<Transfer>> queue_, in_flight_;
  std::vector<std::shared_ptr<Transfer>> finished_;
  bool starting_ = false, stopping_ = false, announced_ = false;
  bool broken_ = false;  // no further transfer is believed
  LaneStats stats_;
  PathSelector selector_;

  // Of the lane's thread.
  Route route_{};                    // of the transfer in hand
  std::shared_ptr<Event> last_end_;  // of the last transfer that began, and where it is recorded
  const Stream* end_stream_ = nullptr;
  bool lane_was_busy_ = false;  // with earlier transfers, when the one in hand came
  std::vector<std::uint32_t> blocks_;
  std::vector<std::byte*> slots_;
  std::vector<std::int64_t> long_blocks_, slot_offsets_;
  std::vector<Span> spans_;
  std::vector<CopySpan> copies_;
  // The last points of the stream, one every kWindowStep copies: how far the device may lag behind this thread.
  std::deque<std::shared_ptr<Event>> window_;
  std::int64_t window_cost_ = 0;
  std::atomic<std::int64_t> calls_{0};   // for the thread, while it stays awake; grows under the mutex
  std::atomic<int> callers_waiting_{0};  // in before(), for a transfer to be enqueued
  std::atomic<bool> abandoned_{false};
  std::thread thread_;
};

}  // namespace kvo
