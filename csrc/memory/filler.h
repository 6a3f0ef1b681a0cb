// Makes a region ready from its start on, on a thread of its own: prefaulted by several threads, then pinned piece by
// piece. Ready bytes only grow, until the region is done or something fails; then they stay.
//
// Who owns what: the caller owns the device and the region and keeps both until stop() has returned. `ready_` is
// written by the filling thread alone, with release after the piece is pinned; everything else that changes is under
// `mutex_`.
#pragma once
#include <atomic>
#include <condition_variable>
#include <mutex>
#include <thread>

#include "base/mapped_region.h"
#include "device/device.h"
#include "memory/prefault.h"

namespace kvo {

class Filler {
 public:
  struct Progress {
    std::int64_t ready_bytes = 0;
    bool finished = false;
    Status failure;  // why it stopped short
    double seconds = 0, first_ready_seconds = 0;
    bool gave_up_huge_pages = false;
  };

  // Bytes count in pages here: the arena's exact size is cut by the arena.
  // `held`: no piece after the first bytes is pinned before go_on().
  Filler(Device& device, MappedRegion& region, PrefaultOptions options, bool held);
  ~Filler() { stop(); }
  Filler(const Filler&) = delete;

  Status start();
  void go_on();
  void stop();  // the piece in hand is finished, no other begun; the thread is gone
  std::int64_t ready_bytes() const { return ready_.load(std::memory_order_acquire); }
  // Until `bytes` are ready or never will be; false: the deadline passed first.
  bool wait(std::int64_t bytes, Deadline deadline);
  void wait(std::int64_t bytes);
  Progress progress() const;
  // After stop(). The first failure; the other pieces are unpinned all the same.
  Status unpin_all();

 private:
  using Clock = std::chrono::steady_clock;

  void run() noexcept;
  Status fill();
  Status fill_pieces(Prefaulter& prefaulter);
  Status pin(std::int64_t offset, std::int64_t bytes);
  void publish(std::int64_t ready_bytes);
  void yield_driver_lock();
  void wait_while_held();
  void finish(Status status);
  bool settled(std::int64_t bytes) const { return ready_bytes() >= bytes || progress_.finished; }
  double seconds() const { return std::chrono::duration<double>(Clock::now() - began_).count(); }

  Device& device_;
  MappedRegion& region_;
  const PrefaultOptions options_;
  const Clock::time_point began_ = Clock::now();
  std::atomic<std::int64_t> ready_{0};
  std::atomic<bool> stop_{false}, gave_up_huge_pages_{false};
  mutable std::mutex mutex_;
  std::condition_variable changed_;
  bool held_;
  Progress progress_;  // what is atomic above is filled in on reading
  std::thread thread_;
};

}  // namespace kvo
