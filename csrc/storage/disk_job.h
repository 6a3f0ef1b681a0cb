// What the disk tier is asked to do, and what it answers.
#pragma once
#include <array>
#include <chrono>
#include <cstddef>
#include <cstdint>
#include <string>
#include <vector>

namespace kvo {

enum class DiskJobKind { promote, demote };  // disk to memory, memory to disk

struct DiskRecord {
  std::byte* memory;         // a slot's, aligned to 4 KiB; the tier's until the job has ended
  std::int64_t disk_offset;  // in the slab: ExtentPlan::offset_of()
  std::string key;
  std::int64_t sequence = 0;  // promote: 0 takes any
};

struct DiskJob {
  std::int64_t id = 0;
  DiskJobKind kind = DiskJobKind::promote;
  int group = 0;
  std::int64_t slot_bytes = 0, payload_bytes = 0, epoch = 0;
  std::chrono::steady_clock::time_point deadline;  // what has not begun by then is a miss
  std::vector<DiskRecord> records;
};

// How a record ended. All but the first are a miss.
enum class DiskOutcome { done, io_error, cut_short, checksum, identity, stale, deadline, off, closed };
inline constexpr std::array kDiskOutcomes = {"done",  "io_error", "cut_short", "checksum", "identity",
                                             "stale", "deadline", "off",       "closed"};

inline bool is_untried(DiskOutcome outcome) {
  return outcome == DiskOutcome::deadline || outcome == DiskOutcome::off || outcome == DiskOutcome::closed;
}

struct DiskJobResult {
  std::int64_t id = 0;
  DiskJobKind kind = DiskJobKind::promote;
  std::int64_t bytes = 0;             // of the records that made it
  double seconds = 0;                 // since it was submitted
  std::vector<std::int64_t> failed;   // positions of the others
  std::vector<std::int64_t> untried;  // of these, those for which the disk was never asked: it is as before
  std::string error;                  // of the one that ended first
};

struct DiskStats {
  std::int64_t promoted = 0, promoted_bytes = 0, demoted = 0, demoted_bytes = 0;  // records
  std::array<std::int64_t, kDiskOutcomes.size()> promotions{}, demotions{};       // records by outcome
  std::int64_t dropped = 0;                                                       // records that were not taken in
  std::int64_t waiting_promotions = 0, waiting_demotions = 0, jobs = 0;           // now
  std::int64_t times_off = 0, strays = 0, registered_bytes = 0;
  std::string off;  // why nothing is read or written just now; empty: it works
};

}  // namespace kvo
