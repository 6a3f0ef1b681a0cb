// What this process may use, read before anything is taken: memory (cgroup v1 and v2, memlock) and cores.
#pragma once
#include <cstdint>
#include <optional>
#include <string>

#include "base/status.h"

namespace kvo {

struct SystemRoots {  // tests point them at made-up trees
  std::string cgroup_root = "/sys/fs/cgroup";
  std::string proc_root = "/proc";
};

// memory: `bytes` more do not fit; the message says asked, available, which limit, and the option `host`.
// Otherwise a warning, or "": MemAvailable only warns, because a virtual machine's memory may grow as it is used.
//
// Pinning through the CUDA driver is not charged to RLIMIT_MEMLOCK; memory registered with io_uring is. So memlock is
// checked only where the caller says that it counts.
Result<std::string> check_limits(std::int64_t bytes, const SystemRoots& roots, bool needs_memlock);

// Cores this process may keep busy: its affinity and its cgroup's CPU quota, at least 1.
int usable_cores(const SystemRoots& roots);

std::optional<std::string> read_text(const std::string& path);

}  // namespace kvo
