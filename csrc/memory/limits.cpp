#include "memory/limits.h"

#include <sched.h>
#include <sys/resource.h>

#include <algorithm>
#include <cstdlib>
#include <fstream>
#include <sstream>
#include <vector>

#include "base/units.h"

namespace kvo {
namespace {

constexpr int kIpcLockBit = 14;  // CAP_IPC_LOCK in CapEff of /proc/self/status

// The number after `name` in a text of "name number" or "name: number kB" lines.
std::optional<std::int64_t> field(const std::string& text, const std::string& name, int base = 10) {
  std::istringstream lines(text);
  for (std::string line; std::getline(lines, line);) {
    if (line.compare(0, name.size(), name) != 0) continue;
    const char* start = line.c_str() + name.size();
    char* end = nullptr;
    const auto value = static_cast<std::int64_t>(std::strtoull(start, &end, base));
    if (end != start) return value;
  }
  return std::nullopt;
}

// A cgroup file of one number; nothing for "max", for v1's "no limit" (close to 2^63) and where the file is absent.
std::optional<std::int64_t> number_in(const std::string& path) {
  const auto text = read_text(path);
  const auto value = text ? field(*text, "") : std::nullopt;
  return value && *value >= 0 && *value < (std::int64_t{1} << 60) ? value : std::nullopt;
}

// The directories that bind this process, its own first, then each ancestor's. In a container the path may be the
// host's and not exist here; then the root, where the container's own group is mounted, is what is left.
// `controller` is v1's ("memory"), or "" for v2.
std::vector<std::string> cgroup_dirs(const SystemRoots& roots, const std::string& controller) {
  std::string path;
  std::istringstream lines(read_text(roots.proc_root + "/self/cgroup").value_or(""));
  for (std::string line; std::getline(lines, line);) {  // "4:cpu,cpuacct:/a/b"; v2: "0::/a/b"
    const auto first = line.find(':');
    const auto second = first == std::string::npos ? first : line.find(':', first + 1);
    if (second == std::string::npos || line.compare(second, 2, ":/") != 0) continue;
    const std::string names = "," + line.substr(first + 1, second - first - 1) + ",";
    if (names.find("," + controller + ",") != std::string::npos) path = line.substr(second + 1);
  }
  const std::string root = roots.cgroup_root + (controller.empty() ? "" : "/" + controller);
  std::vector<std::string> dirs;
  for (; path.size() > 1; path.resize(path.rfind('/'))) dirs.push_back(root + path);
  dirs.push_back(root);
  return dirs;
}

struct CgroupFiles {
  std::string controller, limit, usage;
  std::vector<std::string> file_cache;  // fields of memory.stat
};

Status check_cgroup(std::int64_t bytes, const SystemRoots& roots, const CgroupFiles& files) {
  for (const std::string& dir : cgroup_dirs(roots, files.controller)) {
    const auto limit = number_in(dir + "/" + files.limit);
    if (!limit) continue;
    // Usage counts page cache, which the kernel gives back before it kills.
    const std::string stat = read_text(dir + "/memory.stat").value_or("");
    std::int64_t used = number_in(dir + "/" + files.usage).value_or(0);
    for (const std::string& name : files.file_cache) used -= field(stat, name + " ").value_or(0);
    const std::int64_t available = std::max<std::int64_t>(0, *limit - std::max<std::int64_t>(0, used));
    if (bytes <= available) continue;
    return Status(Code::memory, "host: asked for " + human_bytes(bytes) + " (" + std::to_string(bytes) +
                                    " bytes), available " + human_bytes(available) + " (" + std::to_string(available) +
                                    " bytes) under the cgroup limit of " + human_bytes(*limit) + " in " + dir + "/" +
                                    files.limit + ": lower `host` or raise that limit");
  }
  return {};
}

Status check_memlock(std::int64_t bytes, const SystemRoots& roots) {
  rlimit limit{};
  if (getrlimit(RLIMIT_MEMLOCK, &limit) != 0 || limit.rlim_cur == RLIM_INFINITY) return {};
  const std::string status = read_text(roots.proc_root + "/self/status").value_or("");
  if (field(status, "CapEff:", 16).value_or(0) >> kIpcLockBit & 1) return {};
  const std::int64_t pinned = field(status, "VmPin:").value_or(0) * KiB;
  const auto allowed = static_cast<std::int64_t>(std::min<rlim_t>(limit.rlim_cur, INT64_MAX));
  const std::int64_t available = std::max<std::int64_t>(0, allowed - pinned);
  if (bytes <= available) return {};
  return Status(Code::memory, "host: asked for " + human_bytes(bytes) + " (" + std::to_string(bytes) +
                                  " bytes), available " + human_bytes(available) + " (" + std::to_string(available) +
                                  " bytes) under the limit on locked memory of " + human_bytes(allowed) +
                                  " (RLIMIT_MEMLOCK, ulimit -l): lower `host` or raise that limit");
}

// v2: "200000 100000" or "max 100000" (microseconds) in cpu.max; v1: one number a file, -1 for none.
std::optional<double> quota_cores(const std::string& dir) {
  std::string quota, period;
  if (const auto text = read_text(dir + "/cpu.max")) {
    std::istringstream(*text) >> quota >> period;
  } else {
    quota = read_text(dir + "/cpu.cfs_quota_us").value_or("");
    period = read_text(dir + "/cpu.cfs_period_us").value_or("");
  }
  const double quota_us = std::atof(quota.c_str()), period_us = std::atof(period.c_str());  // "max" reads as 0
  return quota_us > 0 && period_us > 0 ? std::optional(quota_us / period_us) : std::nullopt;
}

}  // namespace

std::optional<std::string> read_text(const std::string& path) {
  std::ifstream file(path);
  if (!file) return std::nullopt;
  std::ostringstream text;
  text << file.rdbuf();
  return text.str();
}

Result<std::string> check_limits(std::int64_t bytes, const SystemRoots& roots, bool needs_memlock) {
  KVO_TRY(check_cgroup(bytes, roots, {"", "memory.max", "memory.current", {"inactive_file", "active_file"}}));
  KVO_TRY(check_cgroup(
      bytes, roots,
      {"memory", "memory.limit_in_bytes", "memory.usage_in_bytes", {"total_inactive_file", "total_active_file"}}));
  if (needs_memlock) KVO_TRY(check_memlock(bytes, roots));
  const auto available_kib = field(read_text(roots.proc_root + "/meminfo").value_or(""), "MemAvailable:");
  if (!available_kib || *available_kib * KiB >= bytes) return std::string();
  return "host: asked for " + human_bytes(bytes) + " while MemAvailable is " + human_bytes(*available_kib * KiB) +
         ": fine on a virtual machine whose memory grows, else lower `host`";
}

int usable_cores(const SystemRoots& roots) {
  cpu_set_t affinity;
  double cores = sched_getaffinity(0, sizeof affinity, &affinity) == 0 ? CPU_COUNT(&affinity) : 1;
  for (const char* controller : {"", "cpu"}) {
    for (const std::string& dir : cgroup_dirs(roots, controller))
      cores = std::min(cores, quota_cores(dir).value_or(cores));
  }
  return std::max(1, static_cast<int>(cores));
}

}  // namespace kvo
