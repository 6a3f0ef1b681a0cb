// What the directory shows of itself, and the recount that tests hold it to.
#include <string>
#include <unordered_map>

#include "ledger/directory.h"

namespace kvo {

namespace {

Status broken(const std::string& what) { return {Code::invalid, "broken invariant: " + what}; }

struct Owners {
  std::int32_t all = 0;
  decltype(Entry::given_up_jobs) given_up_jobs{};
  bool operator==(const Owners&) const = default;
};

TierStats stats_of(const Tier& tier) {
  TierStats stats;
  const SlotPool& pool = tier.pool();
  for (int i = 0; i < pool.groups(); ++i) {
    const Tier::Group& group = tier.groups()[i];
    const std::int64_t slot_bytes = pool.plan().slot_bytes[i];
    const std::int64_t filling_keys = static_cast<std::int64_t>(group.map.size()) - group.ready_keys;
    stats.groups.push_back({pool.counts(i), slot_bytes, group.ready_keys, filling_keys});
    stats.used_bytes += pool.counts(i).used() * slot_bytes;
  }
  stats.ready_bytes = pool.ready_bytes();
  stats.quarantined_bytes = pool.quarantined_bytes();
  stats.free_extents = pool.free_extents();
  stats.off = tier.over_quarantine();
  stats.serving = pool.groups() > 0 && !stats.off;
  return stats;
}

}  // namespace

bool Directory::tier_off() const {
  std::lock_guard lock(mutex_);
  return host_.over_quarantine();
}

DirectoryStats Directory::stats() const {
  std::lock_guard lock(mutex_);
  DirectoryStats stats;
  stats.counters = counters_;
  stats.counters.evicted_keys = host_.evicted_keys();
  stats.counters.disk_evicted_keys = disk_.evicted_keys();
  stats.host = stats_of(host_), stats.disk = stats_of(disk_);
  stats.epoch = epoch_;
  stats.jobs_in_flight = static_cast<std::int64_t>(jobs_.size());
  for (const auto& [id, job] : jobs_) stats.given_up_jobs += job.given_up;
  stats.holds = static_cast<std::int64_t>(holds_.size());
  for (const auto& keys : waiting_) stats.waiting_for_disk_keys += static_cast<std::int64_t>(keys.size());
  return stats;
}

Status Directory::check() const {
  std::lock_guard lock(mutex_);
  for (const Tier* tier : {&host_, &disk_}) {
    KVO_TRY(tier->check());
    KVO_TRY(check_owners(*tier));
  }
  return {};
}

// Every owner an entry counts is a job in flight or a hold, and the other way round.
Status Directory::check_owners(const Tier& tier) const {
  std::unordered_map<const Entry*, Owners> counted;
  const auto count = [&](const std::vector<Entry*>& entries, const Job* job) {
    for (const Entry* entry : entries) {
      ++counted[entry].all;
      if (job && job->given_up) ++counted[entry].given_up_jobs[static_cast<std::size_t>(medium_of(job->kind))];
    }
  };
  for (const auto& [id, job] : jobs_) {
    if (&tier == (job.kind == JobKind::promote ? &disk_ : &host_)) count(job.reads, &job);
    if (&tier == (job.kind == JobKind::demote ? &disk_ : &host_)) count(job.fills, &job);
  }
  for (const auto& [id, entries] : holds_)
    if (&tier == &host_) count(entries, nullptr);
  for (const SlotPool::Extent& extent : tier.pool().extents()) {
    for (std::int64_t i = 0; i < extent.usable; ++i) {
      const Entry* entry = &extent.entries[i];
      const auto found = counted.find(entry);
      if ((found == counted.end() ? Owners{} : found->second) != Owners{entry->owners, entry->given_up_jobs})
        return broken("slot " + std::to_string(entry->slot) + " of group " + std::to_string(entry->group) +
                      " counts owners that are none");
      if (found != counted.end()) counted.erase(found);
    }
  }
  return counted.empty() ? Status{} : broken("an owner of a slot that is not lent");
}

}  // namespace kvo
