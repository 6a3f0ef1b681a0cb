// Keys that are gone, 4 bytes each: the last `capacity` inserted, with a tag of two bits. All keys inserted together
// are forgotten together (a prefix remembered with holes is worth little), so slots carry the time of their insertion.
#pragma once
#include <array>
#include <cstddef>
#include <cstdint>
#include <optional>
#include <vector>

namespace kvo {

class GhostTable {
 public:
  // Everything is forgotten when it changes by more than an eighth.
  void set_capacity(std::int64_t keys);
  void insert(std::uint64_t hash, int tag);     // a key that is not in it; tag: 0 to 3
  std::optional<int> take(std::uint64_t hash);  // its tag, and forgets it. One stranger in 100,000 is taken for a key.
  std::int64_t size() const { return size_; }   // about
  std::size_t bytes() const { return buckets_.capacity() * sizeof(Bucket); }

 private:
  // A cache line, the newest first. A slot: 22 bits of the hash, the tag, 8 bits of the generation it was inserted in.
  // 0: none, and none behind it.
  using Bucket = std::array<std::uint32_t, 16>;

  // Each key has two buckets and goes into the emptier one, so that hardly ever one is full before its keys are old.
  std::array<Bucket*, 2> buckets_of(std::uint64_t hash);
  std::uint32_t generation() const;
  void forget_old(Bucket& bucket) const;

  std::vector<Bucket> buckets_ = std::vector<Bucket>(1);
  std::int64_t capacity_ = 1, size_ = 0;
  std::int64_t inserted_ = 0;
};

}  // namespace kvo
