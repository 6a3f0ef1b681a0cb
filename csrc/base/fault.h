// Named places where tests make a call fail. Costs one relaxed load while nothing is armed.
#pragma once
#include <atomic>
#include <string_view>

namespace kvo::fault {

inline std::atomic<int> armed_count{0};

// The next `count` passes through `point` after the first `skip` of them fail. count = 0 disarms it.
void arm(std::string_view point, long skip, long count);
void disarm_all();
bool fires_slow(std::string_view point);

inline bool fires(std::string_view point) {
  return armed_count.load(std::memory_order_relaxed) != 0 && fires_slow(point);
}

}  // namespace kvo::fault
