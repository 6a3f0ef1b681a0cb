// Seconds from Python -> a point in time.
#pragma once
#include <chrono>
#include <cstdint>

namespace kvo {

// Negative and NaN: now. Very long: in 30 years.
inline std::chrono::steady_clock::time_point deadline_in(double seconds) {
  constexpr double kForeverSeconds = 1e9;
  const double bounded = seconds > 0 ? (seconds < kForeverSeconds ? seconds : kForeverSeconds) : 0;
  return std::chrono::steady_clock::now() + std::chrono::microseconds(static_cast<std::int64_t>(bounded * 1e6));
}

}  // namespace kvo
