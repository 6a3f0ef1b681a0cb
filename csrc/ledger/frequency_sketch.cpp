#include "ledger/frequency_sketch.h"

#include <algorithm>

namespace kvo {

namespace {

constexpr int kRows = 4, kKeysPerLine = 8;
constexpr std::int64_t kLeastKeys = 1024;
constexpr int kUsesPerKey = 3;  // until every counter has been halved
constexpr std::uint64_t kHalves = 0x7777777777777777;

}  // namespace

void FrequencySketch::set_capacity(std::int64_t keys) {
  keys = std::max(keys, kLeastKeys);
  lines_.assign(static_cast<std::size_t>((keys + kKeysPerLine - 1) / kKeysPerLine), {});
  next_to_age_ = 0, adds_ = 0;
}

// Each row has two words of the line; the line is chosen by the high half of the hash, the counters by its low bits.
FrequencySketch::Counter FrequencySketch::counter_of(std::uint64_t hash, int row) {
  const auto bits = static_cast<int>(hash >> (5 * row) & 31);
  return {2 * row + (bits >> 4), 4 * (bits & 15)};
}

int FrequencySketch::count(std::uint64_t hash) const {
  const Line& line = lines_[line_of(hash)];
  int least = kMost;
  for (int row = 0; row < kRows; ++row) {
    const auto [word, shift] = counter_of(hash, row);
    least = std::min(least, static_cast<int>(line.words[word] >> shift & kMost));
  }
  return least;
}

// Only the counters that are at the least: the others have uses of other keys.
void FrequencySketch::add(std::uint64_t hash) {
  if (++adds_ == kKeysPerLine * kUsesPerKey) age();
  const int least = count(hash);
  if (least == kMost) return;
  Line& line = lines_[line_of(hash)];
  for (int row = 0; row < kRows; ++row) {
    const auto [word, shift] = counter_of(hash, row);
    if (static_cast<int>(line.words[word] >> shift & kMost) == least) line.words[word] += std::uint64_t{1} << shift;
  }
}

void FrequencySketch::age() {
  for (std::uint64_t& word : lines_[next_to_age_].words) word = word >> 1 & kHalves;
  next_to_age_ = (next_to_age_ + 1) % lines_.size();
  adds_ = 0;
}

}  // namespace kvo
