// What the kernel says about a range of this process's memory.
#pragma once
#include <sys/mman.h>

#include <algorithm>
#include <cinttypes>
#include <cstdio>
#include <fstream>
#include <sstream>
#include <string>
#include <vector>

namespace kvo {

struct MappingFacts {
  std::int64_t mapped_bytes = 0, resident_bytes = 0;
  std::string permissions, flags;  // of the first mapping
};

// Of [base, base + bytes); `base` is a page's start.
inline MappingFacts mapping_facts(const void* base, std::int64_t bytes) {
  MappingFacts facts;
  const auto first = reinterpret_cast<std::uint64_t>(base), last = first + bytes;
  std::ifstream smaps("/proc/self/smaps");
  bool inside = false;
  for (std::string line; std::getline(smaps, line);) {
    std::uint64_t start = 0, end = 0;
    char permissions[5] = {};
    if (std::sscanf(line.c_str(), "%" SCNx64 "-%" SCNx64 " %4s", &start, &end, permissions) == 3) {
      inside = start < last && end > first;
      if (inside) facts.mapped_bytes += std::min(end, last) - std::max(start, first);
      if (inside && facts.permissions.empty()) facts.permissions = permissions;
    } else if (inside && line.rfind("VmFlags:", 0) == 0 && facts.flags.empty()) {
      facts.flags = line.substr(8) + " ";
    }
  }
  // Rss of smaps would count a neighbour that the kernel merged into the same mapping.
  std::vector<unsigned char> resident((bytes + 4095) / 4096);
  if (mincore(const_cast<void*>(base), bytes, resident.data()) == 0) {
    for (const unsigned char page : resident) facts.resident_bytes += (page & 1) * 4096;
  }
  return facts;
}

// "VmRSS:", "VmSize:" of /proc/self/status.
inline std::int64_t process_bytes(const std::string& name) {
  std::ifstream status("/proc/self/status");
  for (std::string line; std::getline(status, line);) {
    if (line.rfind(name, 0) == 0) return std::stoll(line.substr(name.size())) * 1024;
  }
  return -1;
}

}  // namespace kvo
