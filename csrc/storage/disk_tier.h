// Memory slots to disk and back: records, sealed and verified, on threads of its own.
//
// submit() and poll() never wait for the disk. Whatever goes wrong with a record is a miss of that record and a count;
// a disk that fails again and again is off for a while. The memory of a job belongs to the tier until its result was
// polled, and after a close() that did not end in time for ever.
#pragma once
#include <thread>

#include "base/owner_process.h"
#include "storage/disk_probe.h"
#include "storage/disk_worker.h"

namespace kvo {

struct DiskTierOptions {
  SlabOptions slab;
  std::string io = "auto";           // or io_uring, threads
  int threads = 1;                   // of I/O; a checksum takes a core at about 10 GB/s
  int depth = 0;                     // requests at a time and thread; 0: what was found by trying
  std::int64_t request_bytes = 0;    // 0: likewise; a record is cut into requests of at most this
  std::int64_t most_waiting = 4096;  // records in each of both queues
  int most_failures = 8;             // in a row; then the disk is off
  double retry_seconds = 10;         // until it is tried again
  std::byte* memory = nullptr;       // of all slots
  std::int64_t memory_bytes = 0;
  std::function<std::int64_t()> memory_ready;  // how much of it may be registered with the kernel; empty: nothing
  std::shared_ptr<void> memory_owner;          // kept while anything may still read or write there
};

struct DiskReport {
  SlabReport slab;
  DiskTuning tuning;
  std::string io;    // io_uring, threads
  std::string note;  // why it is not the best
};

class DiskTier {
 public:
  using Deadline = std::chrono::steady_clock::time_point;

  static Result<std::unique_ptr<DiskTier>> open(DiskTierOptions options);
  ~DiskTier();  // close() within 5 seconds
  DiskTier(const DiskTier&) = delete;

  // invalid: it cannot be meant. queue_full, unsupported (the disk is off), closed: dropped and counted.
  Status submit(DiskJob job);
  std::vector<DiskJobResult> poll() { return shared_->jobs.poll(); }
  bool wait(Deadline deadline) { return shared_->jobs.wait(deadline); }  // until poll() has something or nothing comes

  std::uint64_t identity() const { return shared_->slab->identity(); }
  Status set_identity(std::uint64_t identity) { return shared_->slab->set_identity(identity); }
  // All that was polled is on the medium. For a manifest's sync_data.
  Status sync() { return shared_->slab->sync(); }
  std::vector<std::string> paths() const { return shared_->slab->paths(); }
  std::int64_t bytes() const { return shared_->slab->plan().bytes; }
  const DiskReport& report() const { return report_; }
  DiskStats stats() const;

  // What waits is a miss, what is under way ends. timeout: it goes on, and the memory must be left to it.
  Status close(Deadline deadline);

 private:
  explicit DiskTier(std::shared_ptr<DiskShared> shared) : shared_(std::move(shared)) {}
  Status tune(const DiskTierOptions& options);
  Status start(int threads);
  Status check(const DiskJob& job) const;
  void wake();

  const OwnerProcess owner_;
  const std::shared_ptr<DiskShared> shared_;
  std::vector<std::shared_ptr<DiskWorker>> workers_;
  std::mutex closing_;
  std::vector<std::thread> threads_;
  DiskReport report_;
};

}  // namespace kvo
