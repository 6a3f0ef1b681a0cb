// Who knows keys: key -> host slot and disk slot, readers, jobs, budgets. No CUDA, no tensors, no I/O, never blocks.
//
// Two tiers (tier.h); jobs that fill slots of one and read slots of the other; holds on host slots. Everything about
// the disk that a manifest must hear of in order is collected here and taken by take_disk_events(): slots whose record
// counts no longer, before anything may write there, and records that are complete on every rank. All calls take one
// internal mutex. A group that does not exist is a miss.
#pragma once
#include <cstdint>
#include <deque>
#include <map>
#include <mutex>
#include <span>
#include <string>
#include <unordered_map>
#include <utility>
#include <vector>

#include "ledger/admission.h"
#include "ledger/group_hits.h"
#include "ledger/tier.h"
#include "ledger/write_budget.h"

namespace kvo {

enum class JobKind { store, load, demote, promote };

struct GroupKeys {  // keys: from the chunk on that has the first token asked for
  int group;
  Keys keys;
  GroupNeeds needs;
};

struct PlannedJob {
  std::int64_t id = 0;                   // 0: nothing to do
  std::vector<std::int64_t> accepted;    // store, promote: indexes into the given keys that are moved; load: all
  std::vector<std::int64_t> slots;       // in host memory, one per key moved
  std::vector<std::int64_t> disk_slots;  // demote, promote: likewise
  std::vector<std::string> keys;         // demote: what is moved
  std::int64_t sequence = 0;             // demote: of the first key, the others follow
  std::int64_t epoch = 0;                // demote, promote: of all records
};

struct Report {
  std::int64_t job;
  bool ok;
  std::vector<std::int64_t> failed = {};  // positions of keys that failed in a job that is ok but for them
  // Ascending positions, of those that failed, at which nothing was read or written: what lies there is as it was.
  std::vector<std::int64_t> untried = {};
};

struct FinishedJob {
  std::int64_t id;
  JobKind kind;
  bool ok;
  bool late;  // it had been given up by expire() before
};

struct Record {  // of a key on disk
  SlotName name;
  std::string key;
  std::int64_t sequence;
};

struct DiskEvents {
  std::vector<SlotName> freed;    // to be noted before any plan made since is sent
  std::vector<Record> committed;  // to be noted after `freed`
  std::int64_t epoch;             // of these records
};

struct DirectoryCounters {
  std::int64_t lookup_keys = 0, hit_keys = 0, disk_hit_keys = 0;
  std::int64_t accepted_keys = 0;  // got a slot in plan_store
  std::int64_t skipped_keys = 0;   // plan_store: there already, or twice in one call
  std::int64_t dropped_keys = 0;   // plan_store: no slot to be had, or the tier is off; or the job was abandoned
  std::int64_t stored_keys = 0, promoted_keys = 0, demoted_keys = 0;  // became ready that way
  std::int64_t undemoted_keys = 0;    // were to go to disk and did not: too many waiting, gone meanwhile
  std::int64_t unadmitted_keys = 0;   // likewise: not worth what would have to go (tinylfu)
  std::int64_t over_budget_keys = 0;  // likewise: the day's writes are used up
  std::int64_t evicted_keys = 0, disk_evicted_keys = 0, failed_keys = 0, forgotten_keys = 0;
  std::int64_t store_jobs = 0, load_jobs = 0, demote_jobs = 0, promote_jobs = 0;
  std::int64_t failed_jobs = 0, expired_jobs = 0, abandoned_jobs = 0;
  std::int64_t late_reports = 0, unknown_reports = 0;  // unknown: no such job in flight, or this rank said so before
};

struct GroupStats {
  SlotCounts slots;
  std::int64_t slot_bytes = 0, ready_keys = 0, filling_keys = 0;
};

struct TierStats {
  std::vector<GroupStats> groups;
  std::int64_t ready_bytes = 0, used_bytes = 0, quarantined_bytes = 0, free_extents = 0;
  bool serving = false, off = false;
};

struct DirectoryStats {
  DirectoryCounters counters;
  TierStats host, disk;
  std::int64_t epoch = 0, jobs_in_flight = 0, given_up_jobs = 0, holds = 0, waiting_for_disk_keys = 0;
};

class Directory {
 public:
  using Keys = kvo::Keys;

  // `policy`: which ready keys go when a tier is full; a name that make_policy() knows. `disk_writes_per_day`: bytes of
  // each rank, 0 for no limit.
  explicit Directory(int ranks, Admission admission = Admission::all, std::string policy = "adaptive",
                     std::int64_t disk_writes_per_day = 0)
      : ranks_(ranks), policy_(std::move(policy)), admission_(admission), budget_(disk_writes_per_day) {}
  Directory(const Directory&) = delete;

  // Everything is a miss until open(). Once; `host_bytes` is the whole tier, of which grow() says how much is ready.
  Status open(std::int64_t host_bytes, const std::vector<std::int64_t>& slot_bytes);
  void grow(std::int64_t ready_bytes);
  // After open(), before the first plan. All of the disk is ready at once.
  Status open_disk(std::int64_t disk_bytes, std::int64_t epoch, std::int64_t next_sequence);
  bool restore(const Record& record);  // what a manifest knows; false: it cannot be true here

  struct Hits {
    std::int64_t host = 0;  // leading keys ready in host memory
    std::int64_t disk = 0;  // how many more after them are in one of the tiers: a prefetch makes them host hits
  };
  Hits lookup(int group, Keys keys);  // hits become the most recently used
  struct GroupHits {
    std::int64_t host_tokens = 0;          // a prefix of so many is in host memory: all that each group needs of it
    std::int64_t tokens = 0;               // and of so many in one of the tiers
    std::int64_t held_keys = 0, hold = 0;  // what the first needs; held if asked for
  };
  // The caller has start_tokens already: what lies before them is not asked for.
  GroupHits lookup_groups(std::span<const GroupKeys> groups, std::int64_t start_tokens, bool hold);
  std::vector<EntryState> states(int group, Keys keys, bool on_disk = false) const;  // free = absent
  PlannedJob plan_store(int group, Keys keys, double deadline_seconds);
  PlannedJob plan_load(int group, Keys keys, double deadline_seconds);
  // Of the leading keys that are in one of the tiers, those that host memory neither has nor is getting.
  PlannedJob plan_promote(int group, Keys keys, double deadline_seconds);
  // Up to `most` of the keys that wait for the disk, in their order. Those passed over are counted and wait no more; no
  // more than `most` are over the budget.
  PlannedJob plan_demote(int group, std::int64_t most, double now_seconds, double deadline_seconds);
  DiskEvents take_disk_events();

  std::pair<std::int64_t, std::int64_t> hold(int group, Keys keys);  // {hold, leading ready keys held}
  void release(std::int64_t hold);                                   // again, or one that never was: nothing
  std::int64_t forget(int group, Keys keys);
  void reset();

  std::vector<FinishedJob> report(int rank, const std::vector<Report>& reports);
  std::vector<FinishedJob> expire(double now_seconds);
  Status abandon(std::int64_t job);

  bool tier_off() const;
  DirectoryStats stats() const;
  Status check() const;  // recounts everything; invalid names the first broken invariant

 private:
  struct Job {
    JobKind kind;
    std::vector<Entry*> reads, fills;  // each has this job as one owner; by position of the key, where there are both
    std::int64_t sequence;             // demote
    std::vector<bool> reported;        // per rank
    int ranks_left;
    double deadline_seconds;
    bool failed = false, given_up = false;
  };

  // A key whose demotions failed is tried again when it is used; after so many only once others succeed again.
  static constexpr int kMostDemotions = 4;

  static Medium medium_of(JobKind kind) {
    return kind == JobKind::demote || kind == JobKind::promote ? Medium::disk : Medium::device;
  }
  bool disk_open() const { return disk_.pool().groups() > 0; }
  Tier& read_from(JobKind kind) { return kind == JobKind::promote ? disk_ : host_; }
  Tier& filled_by(JobKind kind) { return kind == JobKind::demote ? disk_ : host_; }
  void looked_up(const std::vector<Entry*>& in_host, const std::vector<Entry*>& on_disk);
  std::int64_t add_hold(std::vector<Entry*> entries);
  void count_store(int group, Keys keys);
  // at_use: not because they were stored, so only those that a later use takes there.
  void want_on_disk(const std::vector<Entry*>& entries, bool at_use);
  bool disk_has_room(int group) const;
  bool worth_a_write(const Entry* entry) const;
  std::int64_t add_job(Job job);
  void fail(Job& job, const Report& report);
  FinishedJob finish(std::int64_t id, Job& job);
  void hand_on_use(Entry& record, Entry& entry);
  void release_job(Job& job);
  Status check_owners(const Tier& tier) const;

  const int ranks_;
  const std::string policy_;
  mutable std::mutex mutex_;
  Tier host_{"host", Medium::device}, disk_{"disk_size", Medium::disk, &host_};
  std::map<std::int64_t, Job> jobs_;  // by id, which is the order of planning
  std::unordered_map<std::int64_t, std::vector<Entry*>> holds_;
  AdmissionFilter admission_;
  WriteBudget budget_;
  std::vector<std::deque<std::string>> waiting_;  // per group: keys that may go to disk
  bool disk_takes_ = true;                        // the last demotion that ended was one
  std::vector<Record> committed_;
  std::int64_t last_id_ = 0;  // of jobs and holds
  std::int64_t epoch_ = 0, next_sequence_ = 1;
  DirectoryCounters counters_;
};

}  // namespace kvo
