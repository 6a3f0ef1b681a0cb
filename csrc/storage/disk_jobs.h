// The jobs of a disk tier between its callers and its I/O threads: two bounded queues, promotions first.
//
// All calls may come from any thread; one mutex guards everything.
#pragma once
#include <condition_variable>
#include <deque>
#include <memory>
#include <mutex>

#include "base/status.h"
#include "storage/disk_health.h"
#include "storage/disk_job.h"

namespace kvo {

class DiskJobs {
 public:
  using Clock = std::chrono::steady_clock;

  struct Running {
    DiskJob job;
    Clock::time_point began;
    std::size_t next = 0, left = 0;  // records: the next to be taken, how many have not ended
    DiskJobResult result;
  };
  struct Taken {
    std::shared_ptr<Running> running;
    std::size_t position = 0;
    const DiskJob& job() const { return running->job; }
    const DiskRecord& record() const { return running->job.records[position]; }
  };

  DiskJobs(std::int64_t most_waiting, DiskHealth health) : most_waiting_(most_waiting), health_(std::move(health)) {}

  // queue_full: dropped and counted, likewise unsupported: the disk is off.
  Status submit(DiskJob job);
  std::vector<DiskJobResult> poll();
  bool wait(Clock::time_point deadline);  // until poll() has something, or no job is left
  void close();                           // what has not begun is a miss
  DiskStats stats() const;

  // I/O threads.
  bool take(bool demotions, Taken& taken);  // what is too late, or comes when the disk is off, ends here
  void end(const Taken& taken, DiskOutcome outcome, const std::string& error);
  void broke(const std::string& why);
  bool closed() const;

 private:
  using Queue = std::deque<std::shared_ptr<Running>>;

  bool take_from(Queue& queue, std::int64_t& waiting, Taken& taken);
  void end_locked(const Taken& taken, DiskOutcome outcome, const std::string& error);

  const std::int64_t most_waiting_;  // records in each queue
  mutable std::mutex mutex_;
  std::condition_variable changed_;
  DiskHealth health_;
  Queue promotions_, demotions_;
  std::int64_t waiting_promotions_ = 0, waiting_demotions_ = 0, jobs_ = 0;
  std::vector<DiskJobResult> finished_;
  bool closed_ = false;
  DiskStats stats_;
};

}  // namespace kvo
