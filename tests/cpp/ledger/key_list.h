// Keys by number, as a directory takes them.
#pragma once
#include <string>
#include <string_view>
#include <vector>

#include "ledger/tier.h"

namespace kvo {

inline constexpr std::int64_t kSlot = 4096;

struct KeyList {
  KeyList(int first, int end) {
    for (int i = first; i < end; ++i) strings.push_back("key of thirty-two bytes #" + std::to_string(1000000 + i));
    views.assign(strings.begin(), strings.end());
  }
  operator Keys() const { return views; }
  std::vector<std::string> strings;
  std::vector<std::string_view> views;
};

}  // namespace kvo
