// A job's life: planned, reported by every rank (or given up at its deadline and reported later, or never sent).
#include <algorithm>
#include <string>

#include "ledger/directory.h"

namespace kvo {

std::int64_t Directory::add_job(Job job) {
  job.reported.resize(static_cast<std::size_t>(ranks_));
  job.ranks_left = ranks_;
  jobs_.emplace(++last_id_, std::move(job));
  return last_id_;
}

std::vector<FinishedJob> Directory::report(int rank, const std::vector<Report>& reports) {
  std::lock_guard lock(mutex_);
  std::vector<FinishedJob> finished;
  for (const Report& report : reports) {
    const auto found = jobs_.find(report.job);
    if (found == jobs_.end() || rank < 0 || rank >= ranks_ || found->second.reported[rank]) {
      ++counters_.unknown_reports;
      continue;
    }
    Job& job = found->second;
    job.reported[rank] = true;
    --job.ranks_left;
    if (job.given_up) ++counters_.late_reports;
    fail(job, report);
    if (job.ranks_left > 0) continue;
    finished.push_back(finish(report.job, job));
    jobs_.erase(found);
  }
  return finished;
}

// What failed is a miss at once; the slots wait for the other ranks. A load or promotion that failed also says that
// what it read cannot be trusted; a demotion that failed leaves host memory as it was.
void Directory::fail(Job& job, const Report& report) {
  const auto drop = [&](const std::vector<Entry*>& fills, const std::vector<Entry*>& reads) {
    const std::int64_t filled = filled_by(job.kind).drop_all(fills);
    const std::int64_t read = job.kind == JobKind::demote ? 0 : read_from(job.kind).drop_all(reads);
    counters_.failed_keys += std::max(filled, read);
  };
  if (!report.ok) {
    job.failed = true;
    drop(job.fills, job.reads);
    return;
  }
  for (const std::int64_t position : report.failed) {
    const auto at = [&](const std::vector<Entry*>& entries) {
      const bool has = position >= 0 && position < static_cast<std::int64_t>(entries.size());
      return has ? std::vector<Entry*>{entries[position]} : std::vector<Entry*>{};
    };
    drop(at(job.fills), at(job.reads));
  }
}

FinishedJob Directory::finish(std::int64_t id, Job& job) {
  const bool ok = !job.failed && !job.given_up;
  if (!ok && !job.given_up) ++counters_.failed_jobs;
  std::vector<Entry*> ready;
  for (std::size_t i = 0; ok && i < job.fills.size(); ++i) {
    Entry* entry = job.fills[i];
    if (entry->state != EntryState::filling) continue;  // forgotten or failed meanwhile, or of an old epoch
    filled_by(job.kind).make_ready(entry);
    if (job.kind == JobKind::promote) hand_on_use(*job.reads[i], *entry);
    ready.push_back(entry);
    if (job.kind == JobKind::demote)
      committed_.push_back(
          {{entry->group, entry->slot}, std::string(entry->key.view()), job.sequence + static_cast<std::int64_t>(i)});
  }
  std::int64_t& count = job.kind == JobKind::store     ? counters_.stored_keys
                        : job.kind == JobKind::promote ? counters_.promoted_keys
                                                       : counters_.demoted_keys;
  count += static_cast<std::int64_t>(ready.size());
  if (job.kind == JobKind::store && admission_.at_store()) want_on_disk(ready);
  release_job(job);
  return {id, job.kind, ok, job.given_up};
}

// The request that looked the key up on disk goes on with it in host memory: it is the same use.
void Directory::hand_on_use(Entry& record, Entry& entry) {
  entry.looked_up = record.looked_up;
  if (record.state == EntryState::ready) disk_.used(&record);
}

void Directory::release_job(Job& job) {
  const auto release = [&](Tier& tier, const std::vector<Entry*>& entries) {
    for (auto entry = entries.rbegin(); entry != entries.rend(); ++entry) {
      if (job.given_up) tier.end_quarantine(*entry);
      tier.disown(*entry);
    }
  };
  release(filled_by(job.kind), job.fills);
  release(read_from(job.kind), job.reads);
}

// A load's keys are dropped with it: their readers may hang in the copy. What a promotion reads on disk, and a demotion
// in host memory, is as good as before.
std::vector<FinishedJob> Directory::expire(double now_seconds) {
  std::lock_guard lock(mutex_);
  std::vector<FinishedJob> finished;
  for (auto& [id, job] : jobs_) {
    if (job.given_up || job.deadline_seconds > now_seconds) continue;
    job.given_up = true;
    counters_.failed_keys += filled_by(job.kind).drop_all(job.fills);
    if (job.kind == JobKind::load) counters_.failed_keys += host_.drop_all(job.reads);
    for (Entry* entry : job.fills) filled_by(job.kind).quarantine(entry);
    for (Entry* entry : job.reads) read_from(job.kind).quarantine(entry);
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
  const std::int64_t dropped = filled_by(job.kind).drop_all(job.fills);
  (job.kind == JobKind::demote ? counters_.undemoted_keys : counters_.dropped_keys) += dropped;
  if (job.kind == JobKind::demote)
    for (const Entry* entry : job.fills) budget_.give_back(disk_.pool().plan().slot_bytes[entry->group]);
  ++counters_.abandoned_jobs;
  release_job(job);
  jobs_.erase(found);
  return {};
}

}  // namespace kvo
