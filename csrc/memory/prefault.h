// Backs a region with memory ahead of the one thread that registers it, by several threads, from its start on.
//
// Who owns what: units are taken in order through `next_unit_`; what is done, and why it stopped, is under `mutex_`.
// The caller owns the region and keeps it until the Prefaulter is destroyed.
#pragma once
#include <sched.h>

#include <atomic>
#include <condition_variable>
#include <cstddef>
#include <cstdint>
#include <mutex>
#include <optional>
#include <string>
#include <thread>
#include <vector>

#include "base/status.h"
#include "base/units.h"

namespace kvo {

struct PrefaultOptions {
  int threads = 1;
  std::optional<cpu_set_t> cores;      // run there, so that memory touched first lies near
  bool huge_pages = false;             // the region was advised so
  double huge_page_stall_seconds = 5;  // a unit slower than this: no huge pages from there on
};

// Taken by one call: small enough that all threads share the first pieces and that a stop waits only for milliseconds.
inline constexpr std::int64_t kPrefaultUnitBytes = 16 * MiB;

class Prefaulter {
 public:
  // Threads that cannot be started are done without; with none at all, wait() does the work.
  // `stop` is read, `gave_up_huge_pages` is set, at any time.
  Prefaulter(std::byte* base, std::int64_t bytes, PrefaultOptions options, const std::atomic<bool>& stop,
             std::atomic<bool>& gave_up_huge_pages);
  ~Prefaulter();  // waits for the units in hand, takes no more
  Prefaulter(const Prefaulter&) = delete;

  // Until [0, end) is there. memory: it never will be; closed: `stop` was set.
  Status wait(std::int64_t end);

 private:
  void work() noexcept;
  bool populate_next();  // false: nothing left to take, or stopped
  void finish_unit(std::int64_t unit, Status status);
  void watch_pace(std::int64_t end, double seconds);

  std::byte* const base_;
  const std::int64_t bytes_;
  const PrefaultOptions options_;
  const std::atomic<bool>& stop_;
  std::atomic<bool>& gave_up_huge_pages_;
  std::atomic<bool> quit_{false};
  std::atomic<std::int64_t> next_unit_{0};

  std::mutex mutex_;
  std::condition_variable changed_;
  std::vector<bool> done_;            // per unit
  std::int64_t populated_units_ = 0;  // leading done ones
  int working_ = 0;                   // threads that may still finish a unit
  Status failure_;
  std::vector<std::thread> threads_;
};

}  // namespace kvo
