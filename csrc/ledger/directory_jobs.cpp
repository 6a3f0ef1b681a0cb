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

// What failed is a miss at once; the slots wait for the other ranks. A load that failed also says that what it read
// cannot be trusted, and so does a promotion that read a record; a demotion that failed leaves host memory as it was.
void Directory::fail(Job& job, const Report& report) {
  if (!report.ok) job.failed = true;
  const auto fail_from = [&](std::size_t first, std::size_t end) {
    std::vector<Entry*> fills, reads;
    for (std::size_t i = first; i < end; ++i) {
      const bool untried = std::ranges::binary_search(report.untried, static_cast<std::int64_t>(i));
      const bool distrusted = job.kind == JobKind::load || (job.kind == JobKind::promote && !untried);
      if (i < job.fills.size()) fills.push_back(job.fills[i]);
      if (distrusted && i < job.reads.size()) reads.push_back(job.reads[i]);
    }
    counters_.failed_keys += std::max(filled_by(job.kind).drop_all(fills), read_from(job.kind).drop_all(reads));
  };
  if (!report.ok) return fail_from(0, std::max(job.fills.size(), job.reads.size()));
  for (const std::int64_t position : report.failed)
    if (position >= 0) fail_from(static_cast<std::size_t>(position), static_cast<std::size_t>(position) + 1);
}

FinishedJob Directory::finish(std::int64_t id, Job& job) {
  const bool ok = !job.failed && !job.given_up;
  if (!ok && !job.given_up) ++counters_.failed_jobs;
  if (job.kind == JobKind::demote) disk_takes_ = ok;
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
  if (job.kind == JobKind::store && admission_.at_store()) want_on_disk(ready, /*at_use=*/false);
  release_job(job);
  return {id, job.kind, ok, job.given_up};
}

// The request that looked the key up on disk goes on with it in host memory: it is the same use.
void Directory::hand_on_use(Entry& record, Entry& entry) {
  entry.looked_up = record.looked_up;
  if (record.state == EntryState::ready) disk_.used(&record);
}

void Directory::release_job(Job& job) {
  for (std::size_t i = 0; job.kind == JobKind::demote && i < job.reads.size(); ++i) {
    job.reads[i]->being_demoted = false;
    if (job.fills[i]->state == EntryState::dead && job.reads[i]->failed_demotions < kMostDemotions)
      ++job.reads[i]->failed_demotions;
  }
  const auto release = [&](Tier& tier, const std::vector<Entry*>& entries) {
    for (auto entry = entries.rbegin(); entry != entries.rend(); ++entry) {
      if (job.given_up) tier.end_quarantine(*entry, medium_of(job.kind));
      tier.disown(*entry);
    }
  };
  release(filled_by(job.kind), job.fills);
  release(read_from(job.kind), job.reads);
}

// A load's keys are dropped with it: their readers may hang in the copy. What a promotion reads on disk, and a demotion
// in host memory, is as good as before, but its slot stays owned: a late demotion still writes its trailer there, and
// what it writes to disk is believed by nobody.
std::vector<FinishedJob> Directory::expire(double now_seconds) {
  std::lock_guard lock(mutex_);
  std::vector<FinishedJob> finished;
  for (auto& [id, job] : jobs_) {
    if (job.given_up || job.deadline_seconds > now_seconds) continue;
    job.given_up = true;
    counters_.failed_keys += filled_by(job.kind).drop_all(job.fills);
    if (job.kind == JobKind::load) counters_.failed_keys += host_.drop_all(job.reads);
    for (Entry* entry : job.fills) filled_by(job.kind).quarantine(entry, medium_of(job.kind));
    for (Entry* entry : job.reads) read_from(job.kind).quarantine(entry, medium_of(job.kind));
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
