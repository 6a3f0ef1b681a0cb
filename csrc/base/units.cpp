#include "base/units.h"

#include <array>
#include <cmath>
#include <cstdio>

namespace kvo {

std::string human_bytes(std::int64_t bytes) {
  constexpr std::array kUnits = {"B", "KiB", "MiB", "GiB", "TiB", "PiB"};
  double value = static_cast<double>(bytes);
  std::size_t unit = 0;
  // 1023.995 and more would print as "1024.00".
  while (std::fabs(value) >= (unit == 0 ? 1024.0 : 1023.995) && unit + 1 < kUnits.size()) {
    value /= 1024;
    ++unit;
  }
  char text[48];
  std::snprintf(text, sizeof text, unit == 0 ? "%.0f %s" : "%.2f %s", value, kUnits[unit]);
  return text;
}

}  // namespace kvo
