// About how often keys were used of late: a count-min sketch of 4-bit counters, 8 bytes for each key it is made for. A
// key has four counters in one cache line and the least of them counts, so a stranger's uses are seldom taken for its
// own. Counters are halved line by line as uses come in, never all at once.
#pragma once
#include <array>
#include <cstddef>
#include <cstdint>
#include <vector>

namespace kvo {

class FrequencySketch {
 public:
  static constexpr int kMost = 15;

  void set_capacity(std::int64_t keys);  // forgets everything
  void add(std::uint64_t hash);          // 64 well-mixed bits of the key
  int count(std::uint64_t hash) const;   // 0 to kMost
  std::size_t bytes() const { return lines_.size() * sizeof(Line); }

 private:
  struct alignas(64) Line {
    std::array<std::uint64_t, 8> words{};
  };
  struct Counter {
    int word, shift;
  };

  static Counter counter_of(std::uint64_t hash, int row);
  std::size_t line_of(std::uint64_t hash) const { return (hash >> 32) * lines_.size() >> 32; }
  void age();

  std::vector<Line> lines_ = std::vector<Line>(1);
  std::size_t next_to_age_ = 0;
  int adds_ = 0;  // since a line was halved
};

}  // namespace kvo
