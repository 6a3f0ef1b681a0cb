// Memory near a device: by policy where the kernel lets us, else by touching it first from the node's cores.
#pragma once
#include <sched.h>

#include <cstddef>
#include <cstdint>
#include <optional>
#include <string>

#include "base/status.h"

namespace kvo {

// Pages of the range come from `node` while it has some. Containers often forbid the call (EPERM).
Status prefer_node(std::byte* base, std::int64_t bytes, int node);

// "0-3,8" as a set; nothing if it is not such a list or is empty.
std::optional<cpu_set_t> parse_cpu_list(const std::string& list);

// The node's cores among those this process may use.
std::optional<cpu_set_t> cores_of_node(int node);

}  // namespace kvo
