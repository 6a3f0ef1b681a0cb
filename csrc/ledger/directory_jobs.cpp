// A job's life: planned, reported by every rank (or given up at its deadline and reported later, or never sent).
#include <string>

#include "ledger/directory.h"

namespace kvo {

std::int64_t Directory::add_job(JobKind kind, std::vector<Entry*> entries, double deadline_seconds) {
  jobs_.emplace(++last_id_, Job{kind, std::move(entries), std::vector<bool>(static_cast<std::size_t>(ranks_)), ranks_,
                                deadline_seconds});
  return last_id_;
}

std::vector<FinishedJob> Directory::report(int rank, std::span<const std::pair<std::int64_t, bool>> results) {
  std::lock_guard lock(mutex_);
  std::vector<FinishedJob> finished;
  for (const auto& [id, ok] : results) {
    const auto found = jobs_.find(id);
    if (found == jobs_.end() || rank < 0 || rank >= ranks_ || found->second.reported[rank]) {
      ++counters_.unknown_reports;
      continue;
    }
    Job& job = found->second;
    job.reported[rank] = true;
    --job.ranks_left;
    if (job.given_up) ++counters_.late_reports;
    if (!ok) {  // a miss at once; the slots wait for the other ranks
      job.failed = true;
      counters_.failed_keys += drop_all(job.entries);
    }
    if (job.ranks_left > 0) continue;
    finished.push_back(finish(id, job));
    jobs_.erase(found);
  }
  return finished;
}

FinishedJob Directory::finish(std::int64_t id, Job& job) {
  const bool ok = !job.failed && !job.given_up;
  if (!ok && !job.given_up) ++counters_.failed_jobs;
  if (job.kind == JobKind::store && ok) {
    for (Entry* entry : job.entries) {
      if (entry->state != EntryState::filling) continue;  // forgotten meanwhile, or of an old epoch
      entry->state = EntryState::ready;
      ++groups_[entry->group].ready_keys;
      ++counters_.stored_keys;
    }
  }
  release_job(job);
  return {id, job.kind, ok, job.given_up};
}

void Directory::release_job(Job& job) {
  for (auto entry = job.entries.rbegin(); entry != job.entries.rend(); ++entry) {
    if (job.given_up) pool_.end_quarantine(*entry);
    disown(*entry);
  }
}

std::vector<FinishedJob> Directory::expire(double now_seconds) {
  std::lock_guard lock(mutex_);
  std::vector<FinishedJob> finished;
  for (auto& [id, job] : jobs_) {
    if (job.given_up || job.deadline_seconds > now_seconds) continue;
    job.given_up = true;
    counters_.failed_keys += drop_all(job.entries);
    for (Entry* entry : job.entries) pool_.quarantine(entry);
    ++counters_.failed_jobs;
    ++counters_.expired_jobs;
    finished.push_back({id, job.kind, false, false});
  }
  return finished;
}

Status Directory::abandon(std::int64_t id) {
  std::lock_guard lock(mutex_);
  const auto found = jobs_.find(id);
  if (found == jobs_.end()) return {Code::invalid, "job " + std::to_string(id) + " is not in flight"};
  Job& job = found->second;
  if (job.ranks_left < ranks_) {
    return {Code::invalid, "job " + std::to_string(id) + " was sent: " + std::to_string(ranks_ - job.ranks_left) +
                               " of " + std::to_string(ranks_) + " ranks have reported it, wait for the others"};
  }
  if (job.kind == JobKind::store) counters_.dropped_keys += drop_all(job.entries);
  ++counters_.abandoned_jobs;
  release_job(job);
  jobs_.erase(found);
  return {};
}

}  // namespace kvo
