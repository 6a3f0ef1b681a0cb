#include "storage/slab_header.h"

#include <algorithm>
#include <cstring>

#include "base/crc32c.h"

namespace kvo {

void SlabHeader::sign() {
  crc = 0;
  crc = crc32c(this, sizeof *this);
}

bool SlabHeader::same_slab(const SlabHeader& other) const {
  SlabHeader expected = other;
  expected.identity = identity, expected.tuning = tuning;
  expected.sign();
  return std::memcmp(this, &expected, sizeof expected) == 0;
}

SlabHeader slab_header(const SlabPlan& plan, int index, int rank, const std::string& fingerprint) {
  SlabHeader header;
  header.extent_bytes = plan.extent_bytes, header.stripe_bytes = plan.stripe_bytes(plan.extent_bytes);
  header.directories = plan.directories, header.index = index, header.rank = rank;
  header.fingerprint_bytes = static_cast<std::uint32_t>(fingerprint.size());
  std::copy_n(fingerprint.begin(), std::min(fingerprint.size(), sizeof header.fingerprint), header.fingerprint);
  header.groups = static_cast<std::int32_t>(plan.slot_bytes.size());
  std::copy_n(plan.slot_bytes.begin(), std::min(plan.slot_bytes.size(), kMostSlabGroups), header.slot_bytes);
  return header;
}

}  // namespace kvo
