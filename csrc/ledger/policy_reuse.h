// How soon keys are used again, learned from a sample of all keys, resident or not; and from that, what a slot earns
// while it holds a key.
//
// A key's class is how often it was used: once, twice, more. Each class has a life table: by age (uses of any keys
// since its own last use), how many sampled keys ended there and how many of them by being used. The worth of a key at
// an age is the best rate, uses per slot and unit of time, that keeping it for some while longer can bring (its Gittins
// index).
#pragma once
#include <array>
#include <bit>
#include <cstddef>
#include <cstdint>
#include <vector>

namespace kvo {

class ReuseModel {
 public:
  static constexpr int kClasses = 3;

  // The sample is as large as always, and the rarer the more entries: it sees ages of several times `entries`.
  void set_capacity(std::int64_t entries);
  void use(std::uint64_t hash, int key_class, std::uint32_t now);  // and is of that class from now on
  void learn(std::uint32_t now);
  float worth(int key_class, std::uint32_t age) const { return tables_[key_class].worth[age_group(age)]; }
  std::size_t bytes() const { return buckets_.capacity() * sizeof(Bucket); }

 private:
  static constexpr int kAges = 64;  // groups, two to each doubling
  static constexpr std::uint32_t kClassBits = 3, kNone = 3;
  using Counts = std::array<float, kAges>;

  struct SampledKey {
    std::uint32_t mark = kNone;  // the high half of the hash, but the class in the low two bits
    std::uint32_t used_at = 0;
    bool exists() const { return (mark & kClassBits) != kNone; }
  };
  using Bucket = std::array<SampledKey, 8>;  // a cache line, the last used first

  struct LifeTable {
    Counts used{}, ended{};  // ended: used, or lost sight of
    Counts worth{};
  };

  struct Shares {  // by age
    Counts used, at_risk;
  };

  static int age_group(std::uint32_t age) {
    const int log = std::bit_width(age | 1u) - 1;
    return log == 0 ? 0 : 2 * log + static_cast<int>(age >> (log - 1) & 1u);
  }
  Shares used_shares(int key_class, const Counts& alive) const;
  void weigh(int key_class, const Shares& shares);

  std::uint32_t marks_end_ = ~0u;  // keys with a smaller mark are in the sample
  std::vector<Bucket> buckets_;
  std::array<LifeTable, kClasses> tables_;
};

}  // namespace kvo
