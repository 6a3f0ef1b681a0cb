// The first 4 KiB of a slab's file: what it is, and for which cache.
#pragma once
#include <cstddef>
#include <cstdint>
#include <string>

#include "storage/slab_plan.h"

namespace kvo {

// How the disk is best used.
struct DiskTuning {
  std::int32_t depth = 0, zero = 0;  // depth 0: never tried
  std::int64_t request_bytes = 0;
  std::int64_t read_bytes_per_second = 0, write_bytes_per_second = 0;  // that way; 0: not known
};

inline constexpr std::size_t kMostSlabGroups = 256;  // that it names

struct alignas(kSlabHeaderBytes) SlabHeader {
  char magic[8] = {'K', 'V', 'O', 'S', 'L', 'A', 'B', '\0'};
  std::uint32_t version = 1;
  std::uint32_t crc = 0;  // of the header with this field zero
  std::uint64_t identity = 0;
  std::int64_t extent_bytes = 0, stripe_bytes = 0;
  std::int32_t directories = 0, index = 0, rank = 0;
  std::uint32_t fingerprint_bytes = 0;
  char fingerprint[128] = {};
  DiskTuning tuning;
  std::int32_t groups = 0, zero = 0;
  std::int64_t slot_bytes[kMostSlabGroups] = {};
  char zeros[kSlabHeaderBytes - 224 - 8 * kMostSlabGroups] = {};

  void sign();
  // Whether it is whole, and but for identity and tuning what `other` is.
  bool same_slab(const SlabHeader& other) const;
};
static_assert(sizeof(SlabHeader) == kSlabHeaderBytes);

SlabHeader slab_header(const SlabPlan& plan, int index, int rank, const std::string& fingerprint);

}  // namespace kvo
