#include "storage/disk_jobs.h"

#include <algorithm>
#include <utility>

#include "storage/record.h"

namespace kvo {

Status DiskJobs::submit(DiskJob job) {
  std::lock_guard lock(mutex_);
  const bool promotes = job.kind == DiskJobKind::promote;
  std::int64_t& waiting = promotes ? waiting_promotions_ : waiting_demotions_;
  const auto records = static_cast<std::int64_t>(job.records.size());
  const auto now = Clock::now();
  const auto dropped = [&](Code code, const std::string& why) {
    stats_.dropped += records;
    return Status(code, why);
  };
  if (closed_) return dropped(Code::closed, "the disk tier is closed");
  if (health_.refuses(now)) return dropped(Code::unsupported, "the disk is off: " + health_.off());
  if (waiting + records > most_waiting_) {
    return dropped(Code::queue_full, std::to_string(waiting) + (promotes ? " promotions" : " demotions") +
                                         " wait for the disk, at most " + std::to_string(most_waiting_) +
                                         " may: it is slower than what is asked of it");
  }
  auto running = std::make_shared<Running>();
  running->result.id = job.id, running->result.kind = job.kind;
  running->left = job.records.size(), running->began = now, running->job = std::move(job);
  ++jobs_;
  if (records == 0) {
    --jobs_;
    finished_.push_back(std::move(running->result));
    changed_.notify_all();
    return {};
  }
  waiting += records;
  (promotes ? promotions_ : demotions_).push_back(std::move(running));
  return {};
}

bool DiskJobs::take(bool demotions, Taken& taken) {
  std::lock_guard lock(mutex_);
  return take_from(promotions_, waiting_promotions_, taken) ||
         (demotions && take_from(demotions_, waiting_demotions_, taken));
}

bool DiskJobs::take_from(Queue& queue, std::int64_t& waiting, Taken& taken) {
  while (!queue.empty()) {
    const auto now = Clock::now();
    taken.running = queue.front();
    taken.position = taken.running->next++;
    --waiting;
    if (taken.running->next == taken.job().records.size()) queue.pop_front();
    if (closed_) {
      end_locked(taken, DiskOutcome::closed, "the disk tier was closed");
    } else if (now >= taken.job().deadline) {
      end_locked(taken, DiskOutcome::deadline, "the disk did not come to it in time");
    } else if (taken.record().key.size() > kMostRecordKeyBytes) {
      end_locked(taken, DiskOutcome::identity, "a key of more than 256 bytes is not kept on disk");
    } else if (!health_.lets_through(now)) {
      end_locked(taken, DiskOutcome::off, "the disk is off: " + health_.off());
    } else {
      return true;
    }
  }
  taken.running.reset();
  return false;
}

void DiskJobs::end(const Taken& taken, DiskOutcome outcome, const std::string& error) {
  std::lock_guard lock(mutex_);
  // A record that does not verify was read all the same: the disk works.
  if (outcome == DiskOutcome::io_error || outcome == DiskOutcome::cut_short) {
    health_.failed(error, Clock::now());
  } else {
    health_.worked();
  }
  end_locked(taken, outcome, error);
}

void DiskJobs::end_locked(const Taken& taken, DiskOutcome outcome, const std::string& error) {
  Running& running = *taken.running;
  const bool promotes = running.job.kind == DiskJobKind::promote;
  ++(promotes ? stats_.promotions : stats_.demotions)[static_cast<std::size_t>(outcome)];
  if (outcome == DiskOutcome::done) {
    running.result.bytes += running.job.slot_bytes;
    ++(promotes ? stats_.promoted : stats_.demoted);
    (promotes ? stats_.promoted_bytes : stats_.demoted_bytes) += running.job.slot_bytes;
  } else {
    if (running.result.failed.empty()) running.result.error = error;
    running.result.failed.push_back(static_cast<std::int64_t>(taken.position));
    if (is_untried(outcome)) running.result.untried.push_back(static_cast<std::int64_t>(taken.position));
  }
  if (--running.left > 0) return;
  std::ranges::sort(running.result.failed);
  std::ranges::sort(running.result.untried);
  running.result.seconds = std::chrono::duration<double>(Clock::now() - running.began).count();
  finished_.push_back(std::move(running.result));
  --jobs_;
  changed_.notify_all();
}

std::vector<DiskJobResult> DiskJobs::poll() {
  std::lock_guard lock(mutex_);
  return std::exchange(finished_, {});
}

bool DiskJobs::wait(Clock::time_point deadline) {
  std::unique_lock lock(mutex_);
  return changed_.wait_until(lock, deadline, [&] { return !finished_.empty() || jobs_ == 0; });
}

void DiskJobs::close() {
  std::lock_guard lock(mutex_);
  closed_ = true;
}

void DiskJobs::broke(const std::string& why) {
  std::lock_guard lock(mutex_);
  health_.broke(why);
  Taken none;
  take_from(promotions_, waiting_promotions_, none);  // all of them end: the disk is off
  take_from(demotions_, waiting_demotions_, none);
}

bool DiskJobs::closed() const {
  std::lock_guard lock(mutex_);
  return closed_;
}

DiskStats DiskJobs::stats() const {
  std::lock_guard lock(mutex_);
  DiskStats stats = stats_;
  stats.waiting_promotions = waiting_promotions_, stats.waiting_demotions = waiting_demotions_, stats.jobs = jobs_;
  stats.times_off = health_.times_off(), stats.off = health_.off();
  return stats;
}

}  // namespace kvo
