// Who knows keys: key -> host slot, readers, jobs, budgets. No CUDA, no tensors, no I/O, never blocks.
//
// Per key: absent, filling, ready; a count of owners (jobs and holds). A ready slot with readers may be read by more;
// it is never evicted or refilled. A dead entry (reset, failed, forgotten) is out of the map at once; its slot is freed
// when its last owner is gone. All calls take one internal mutex. A group that does not exist is a miss.
#pragma once
#include <cstdint>
#include <map>
#include <mutex>
#include <span>
#include <string_view>
#include <unordered_map>
#include <utility>
#include <vector>

#include "base/status.h"
#include "layout/extents.h"
#include "ledger/entry_list.h"
#include "ledger/key_table.h"
#include "ledger/slot_pool.h"

namespace kvo {

enum class JobKind { store, load };

struct PlannedJob {
  std::int64_t id = 0;                 // 0: nothing to do
  std::vector<std::int64_t> accepted;  // store: indexes into the given keys that got a slot; load: all
  std::vector<std::int64_t> slots;     // one per accepted key
};

struct FinishedJob {
  std::int64_t id;
  JobKind kind;
  bool ok;
  bool late;  // it had been given up by expire() before
};

struct DirectoryCounters {
  std::int64_t lookup_keys = 0, hit_keys = 0;
  std::int64_t accepted_keys = 0;  // got a slot in plan_store
  std::int64_t skipped_keys = 0;   // plan_store: there already, or twice in one call
  std::int64_t dropped_keys = 0;   // plan_store: no slot to be had, or the tier is off; or the job was abandoned
  std::int64_t stored_keys = 0;    // became ready
  std::int64_t evicted_keys = 0, failed_keys = 0, forgotten_keys = 0;
  std::int64_t store_jobs = 0, load_jobs = 0, failed_jobs = 0, expired_jobs = 0, abandoned_jobs = 0;
  std::int64_t late_reports = 0, unknown_reports = 0;  // unknown: no such job in flight, or this rank said so before
};

struct GroupStats {
  SlotCounts slots;
  std::int64_t slot_bytes = 0, ready_keys = 0, filling_keys = 0;
};

struct DirectoryStats {
  DirectoryCounters counters;
  std::vector<GroupStats> groups;
  std::int64_t epoch = 0, ready_bytes = 0, used_bytes = 0, quarantined_bytes = 0, free_extents = 0;
  std::int64_t jobs_in_flight = 0, given_up_jobs = 0, holds = 0;
  bool serving = false, tier_off = false;
};

class Directory {
 public:
  using Keys = std::span<const std::string_view>;

  explicit Directory(int ranks) : ranks_(ranks) {}
  Directory(const Directory&) = delete;

  // Everything is a miss until open(). Once; `host_bytes` is the whole tier, of which grow() says how much is ready.
  Status open(std::int64_t host_bytes, std::vector<std::int64_t> slot_bytes);
  void grow(std::int64_t ready_bytes);

  std::int64_t lookup(int group, Keys keys);                   // leading ready keys; they become the most recently used
  std::vector<EntryState> states(int group, Keys keys) const;  // free = absent
  PlannedJob plan_store(int group, Keys keys, double deadline_seconds);
  PlannedJob plan_load(int group, Keys keys, double deadline_seconds);
  std::pair<std::int64_t, std::int64_t> hold(int group, Keys keys);  // {hold, leading ready keys held}
  void release(std::int64_t hold);                                   // again, or one that never was: nothing
  std::int64_t forget(int group, Keys keys);
  void reset();

  std::vector<FinishedJob> report(int rank, std::span<const std::pair<std::int64_t, bool>> results);
  std::vector<FinishedJob> expire(double now_seconds);
  Status abandon(std::int64_t job);

  bool tier_off() const;
  DirectoryStats stats() const;
  Status check() const;  // recounts everything; invalid names the first broken invariant

 private:
  struct Group {
    KeyTable map;
    EntryList lru;  // ready entries without owners, least recently used first
    std::int64_t ready_keys = 0;
  };
  struct Job {
    JobKind kind;
    std::vector<Entry*> entries;  // each has this job as one owner
    std::vector<bool> reported;   // per rank
    int ranks_left;
    double deadline_seconds;
    bool failed = false, given_up = false;
  };

  bool serves(int group) const;
  bool over_quarantine() const;
  std::vector<Entry*> leading_ready(int group, Keys keys) const;
  void touch(const std::vector<Entry*>& entries);
  Entry* take_slot(int group);
  void own(Entry* entry);
  void disown(Entry* entry);
  void drop(Entry* entry);
  void bury(Entry* entry);
  std::int64_t drop_all(const std::vector<Entry*>& entries);
  std::int64_t add_job(JobKind kind, std::vector<Entry*> entries, double deadline_seconds);
  FinishedJob finish(std::int64_t id, Job& job);
  void release_job(Job& job);
  Status check_group(int group) const;
  Status check_owners() const;

  const int ranks_;
  mutable std::mutex mutex_;
  SlotPool pool_;
  std::vector<Group> groups_;
  std::map<std::int64_t, Job> jobs_;  // by id, which is the order of planning
  std::unordered_map<std::int64_t, std::vector<Entry*>> holds_;
  std::int64_t last_id_ = 0;  // of jobs and holds
  std::uint32_t store_calls_ = 0;
  std::int64_t epoch_ = 0;
  DirectoryCounters counters_;
};

}  // namespace kvo
