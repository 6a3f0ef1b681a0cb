// The host tier's memory: one reservation of exactly the bytes asked (in whole pages), usable from its start on while a
// thread of ours prefaults and pins the rest.
//
// Who owns what: the Arena owns the mapping and the Filler, whose thread is the only one that makes bytes ready.
// `ready_bytes` only grows (or stops for ever after a late failure); readers use [base, base + ready_bytes) without a
// lock until close() or leak(). Those two may be called from any thread and more than once. The Filler is on the heap
// and left alone in a forked child: its lock may be held there by a thread that no longer exists.
#pragma once
#include <atomic>
#include <memory>
#include <mutex>
#include <string>

#include "base/mapped_region.h"
#include "base/owner_process.h"
#include "base/units.h"
#include "device/device.h"

namespace kvo {

struct ArenaOptions {
  std::int64_t bytes = 0;
  bool huge_pages = true;
  double huge_page_stall_seconds = 5;          // 16 MiB of huge pages slower than this: small pages from there on
  bool background = true;                      // false: create() returns when all is ready
  bool held = false;                           // in the background, but not before fill_rest()
  int threads = 16;                            // prefault threads, at most the cores this process may use
  bool needs_memlock = false;                  // the memory will be registered with io_uring: RLIMIT_MEMLOCK counts
  std::string cgroup_root = "/sys/fs/cgroup";  // tests point it at a made-up tree
  std::string proc_root = "/proc";
};

// Registrations begin and end at multiples of this; no copy crosses one (plan_spans cuts there). Small, because kernel
// launches of other threads wait while a piece is being registered.
inline constexpr std::int64_t kPieceBytes = 64 * MiB;
inline constexpr std::int64_t kFirstReadyBytes = GiB;
static_assert(kFirstReadyBytes % kPieceBytes == 0);

struct ArenaReport {  // for the start line, doctor and tests
  std::int64_t bytes = 0, ready_bytes = 0;
  bool pinned = false;
  std::string huge_pages;  // "advised", "off", "refused: ...", "given up: ..."
  int numa_node = -1;      // -1: no policy set
  std::string warning;     // MemAvailable below the size, mbind refused, and the failure below
  std::string failure;     // late: why ready_bytes stays below bytes
  double seconds = 0, first_ready_seconds = 0;
};

class Filler;

class Arena {
 public:
  // Returns when min(kFirstReadyBytes, bytes) are ready, or fewer after a failure that left some.
  // memory: the cgroup or memlock limit is too small (message: asked, available, which limit, option `host`), or the
  // system has no memory behind the first bytes. device: pinning them failed.
  static Result<std::unique_ptr<Arena>> create(std::shared_ptr<Device> device, const ArenaOptions& options);
  ~Arena();  // close()
  Arena(const Arena&) = delete;

  void fill_rest();  // see ArenaOptions::held: registering would slow down whoever uses the driver meanwhile

  std::byte* base() const { return region_.base(); }  // null after close() and leak()
  std::int64_t bytes() const { return options_.bytes; }
  std::int64_t ready_bytes() const;
  // timeout: not yet; closed; otherwise what stopped the arena short of `bytes`.
  Status wait_ready(std::int64_t bytes, Deadline deadline);
  ArenaReport report() const;

  void close();  // stops the thread, unpins, unmaps. The caller has made sure that no copy runs.
  void leak();   // stops the thread and forgets the mapping: for a close() past its deadline

 private:
  Arena(std::shared_ptr<Device> device, const ArenaOptions& options, MappedRegion region);
  void advise();
  void warn(const std::string& warning);
  Status nothing_ready(const Status& cause) const;
  void end(bool keep_mapping);

  const std::shared_ptr<Device> device_;
  const ArenaOptions options_;
  const OwnerProcess owner_;
  MappedRegion region_;
  ArenaReport facts_;  // written by create() and, under `closing_`, by close()
  std::atomic<bool> closed_{false};
  mutable std::mutex closing_;
  std::unique_ptr<Filler> filler_;  // last: its thread uses the others
};

}  // namespace kvo
