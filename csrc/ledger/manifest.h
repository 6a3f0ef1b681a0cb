// Which chunks are on disk, kept across restarts and crashes (docs/file-format.md has the format and what is promised).
//
// committed: commit() returned; survives SIGKILL. durable: survives a power cut; at most sync_seconds and one sync
// later. free() and commit() append with one write(2) and wait for nothing; syncs, compaction and new epochs are the
// work of a thread of ours. Free a slot before its bytes are overwritten; commit a key when every rank has written it.
#pragma once
#include <chrono>
#include <memory>

#include "base/owner_process.h"
#include "ledger/manifest_log.h"

namespace kvo {

class Manifest {
 public:
  using Deadline = std::chrono::steady_clock::time_point;

  static Result<std::unique_ptr<Manifest>> open(ManifestOptions options);
  ~Manifest();  // close() within 5 seconds
  Manifest(const Manifest&) = delete;

  // What was found, once: the chunks are handed over.
  ManifestOpening take_opening();
  // Of this cache, for good: a slab that names another one holds nothing that was committed here.
  std::uint64_t identity() const;
  std::int64_t first_sequence() const;  // above all that were ever committed in this epoch

  void free(int group, std::span<const std::int64_t> slots);
  // A commit of an epoch that is over, or of one that has not yet begun, is dropped and counted.
  void commit(std::int64_t epoch, int group, std::span<const ManifestCommit> commits);

  // Nothing committed so far is ever believed again, and the next epoch is durable; each call is one. timeout: that
  // goes on, but is not done yet.
  Status reset(Deadline deadline);
  Status flush(Deadline deadline);  // all appended before is durable
  // Flushes and ends the thread. A thread that the medium holds up past the deadline is left to itself.
  Status close(Deadline deadline);
  ManifestStats stats() const;

 private:
  struct Worker;
  explicit Manifest(std::shared_ptr<Worker> worker) : worker_(std::move(worker)) {}

  OwnerProcess owner_;
  std::shared_ptr<Worker> worker_;  // shared with the thread
};

}  // namespace kvo
