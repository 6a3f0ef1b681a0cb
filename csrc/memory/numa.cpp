#include "memory/numa.h"

#include <linux/mempolicy.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstdio>
#include <sstream>

#include "base/mapped_region.h"
#include "memory/limits.h"

namespace kvo {

Status prefer_node(std::byte* base, std::int64_t bytes, int node) {
  constexpr int kMaxNodes = 1024, kBitsPerWord = 8 * sizeof(unsigned long);
  unsigned long mask[kMaxNodes / kBitsPerWord] = {};
  int error = EINVAL;
  if (node >= 0 && node < kMaxNodes) {
    mask[node / kBitsPerWord] = 1ul << node % kBitsPerWord;
    // Preferred, not bound: a full node must give remote memory, not an OOM kill. The kernel reads maxnode - 1 bits.
    if (syscall(SYS_mbind, base, bytes, MPOL_PREFERRED, mask, kMaxNodes + 1, 0) == 0) return {};
    error = errno;
  }
  return Status(Code::unsupported, "NUMA policy for node " + std::to_string(node) + ": " + errno_text(error));
}

std::optional<cpu_set_t> parse_cpu_list(const std::string& list) {
  cpu_set_t cores;
  CPU_ZERO(&cores);
  std::istringstream ranges(list);
  for (std::string range; std::getline(ranges, range, ',');) {
    int first = 0, last = 0;
    const int fields = std::sscanf(range.c_str(), "%d-%d", &first, &last);
    if (fields < 1 || first < 0) return std::nullopt;
    for (int core = first; core <= std::min(fields == 2 ? last : first, CPU_SETSIZE - 1); ++core) CPU_SET(core, &cores);
  }
  return CPU_COUNT(&cores) > 0 ? std::optional(cores) : std::nullopt;
}

std::optional<cpu_set_t> cores_of_node(int node) {
  const auto list = read_text("/sys/devices/system/node/node" + std::to_string(node) + "/cpulist");
  auto cores = list ? parse_cpu_list(*list) : std::nullopt;
  cpu_set_t allowed;
  if (!cores || sched_getaffinity(0, sizeof allowed, &allowed) != 0) return std::nullopt;
  CPU_AND(&*cores, &*cores, &allowed);
  return CPU_COUNT(&*cores) > 0 ? cores : std::nullopt;
}

}  // namespace kvo
