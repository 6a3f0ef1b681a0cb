// One I/O thread of a disk tier: takes records, seals and verifies them, keeps a queue of requests busy.
#pragma once
#include <atomic>
#include <condition_variable>
#include <deque>
#include <functional>
#include <memory>
#include <mutex>
#include <string>
#include <vector>

#include "storage/disk_jobs.h"
#include "storage/open_queue.h"
#include "storage/record.h"
#include "storage/slab.h"

namespace kvo {

// What the workers of a tier share. Lives as long as any of them.
struct DiskShared {
  DiskShared(std::int64_t most_waiting, DiskHealth health) : jobs(most_waiting, std::move(health)) {}

  DiskJobs jobs;
  std::unique_ptr<Slab> slab;
  RecordOwner owner;
  std::string io;
  IoQueueOptions queue;
  std::int64_t request_bytes = 0;              // a record is cut into requests of at most this
  std::function<std::int64_t()> memory_ready;  // how much of the memory may be registered
  std::shared_ptr<void> memory_owner;
};

class DiskWorker {
 public:
  explicit DiskWorker(std::shared_ptr<DiskShared> shared) : shared_(std::move(shared)) {}
  DiskWorker(const DiskWorker&) = delete;

  void run() noexcept;  // the thread
  // Until the queue is open, or cannot be.
  Status wait_open();
  bool wait_ended(DiskJobs::Clock::time_point deadline);
  bool leaked() const;  // requests were left behind
  void wake();

  std::string name() const { return name_; }  // after wait_open()
  std::string note() const { return note_; }
  std::int64_t registered_bytes() const { return registered_bytes_.load(std::memory_order_relaxed); }
  std::int64_t strays() const { return strays_.load(std::memory_order_relaxed); }

 private:
  struct Active {
    DiskJobs::Taken taken;
    SlabPlace place{};
    std::int64_t sent_bytes = 0, done_bytes = 0;
    int parts = 0;  // on their way
    int error = 0;
  };

  static constexpr std::size_t kNone = ~std::size_t{0};

  bool open();
  void serve();
  bool send_next();
  void take();
  void send(std::size_t index);
  void settle(const IoResult& result);
  void end(std::size_t index);
  DiskOutcome verify(const DiskJobs::Taken& taken, std::string& error) const;
  RecordName name_of(const DiskJobs::Taken& taken) const;

  const std::shared_ptr<DiskShared> shared_;
  mutable std::mutex mutex_;  // of what other threads look at
  std::condition_variable changed_;
  std::unique_ptr<IoQueue> queue_;  // replaced by the thread alone
  Status opening_;
  bool opened_ = false, ended_ = false, leaked_ = false;
  std::string name_, note_;
  std::atomic<std::int64_t> registered_bytes_{0}, strays_{0};

  // Of the thread.
  std::vector<Active> active_;
  std::vector<std::size_t> unused_;
  std::deque<std::size_t> ready_;  // all of them is there, and not yet looked at
  std::size_t sending_ = kNone;    // the record of which not all is on its way
  int demotions_ = 0;
  std::vector<IoResult> results_;
};

}  // namespace kvo
