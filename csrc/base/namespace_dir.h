// Where a cache keeps its files: DIR/<fingerprint>/dp<i>/<leaf>. A leaf is `ledger` or `rank<j>` and has one owner at a
// time; DIR/<fingerprint>/dp<i> is a namespace, in use while one of its leaves is. Directories are 0700 and ours.
//
// Locks are flocks, so they end with their process; a pid in a lock file is for messages only. Nothing is ever removed
// but what lies in a directory with a lock file of ours that nobody holds.
#pragma once
#include <chrono>
#include <cstdint>
#include <string>
#include <utility>
#include <vector>

#include "base/owner_process.h"
#include "base/status.h"
#include "base/unique_fd.h"

namespace kvo {

class NamespaceDir {
 public:
  using Deadline = std::chrono::steady_clock::time_point;

  struct Room {
    std::int64_t foreign_bytes = 0;  // what the other namespaces still take, on disk
    std::int64_t removed_bytes = 0;
    std::vector<std::string> removed;  // paths
    std::vector<std::string> in_use;   // others that would have had to go
  };

  // invalid: a name that is none, a directory that is not ours, or another process has this leaf (the message has its
  // pid). The fingerprint is 8 to 128 letters, digits, `-` and `_`. timeout: it is just being removed.
  static Result<NamespaceDir> open(const std::string& root, const std::string& fingerprint, int dp,
                                   const std::string& leaf, Deadline deadline);

  const std::string& path() const { return path_; }  // of the leaf

  // Removes other namespaces until all that is left of them and `own_bytes` fit `cap_bytes`: those of other
  // fingerprints first, the longest not opened before others. What is in use stays, and counts.
  Result<Room> make_room(std::int64_t own_bytes, std::int64_t cap_bytes, Deadline deadline) const;

 private:
  // Given up on purpose: a forked child has the descriptor, too, and would keep the lock.
  struct Lock {
    Lock() = default;
    explicit Lock(UniqueFd locked) : fd(std::move(locked)) {}
    Lock(Lock&&) = default;
    Lock& operator=(Lock&&) = default;
    ~Lock();
    UniqueFd fd;
    OwnerProcess owner;
  };

  std::string root_, unit_, path_;
  Lock unit_lock_;  // shared by the leaves
  Lock leaf_lock_;
};

}  // namespace kvo
