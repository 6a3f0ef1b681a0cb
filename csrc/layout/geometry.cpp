#include "layout/geometry.h"

#include <limits>

#include "base/units.h"

namespace kvo {

std::int64_t GroupGeometry::block_bytes() const {
  std::int64_t sum = 0;
  for (const PageRun& page : pages) sum += page.bytes;
  return sum;
}

std::int64_t GroupGeometry::payload_bytes() const { return block_bytes() * blocks_per_chunk; }

std::int64_t GroupGeometry::slot_bytes() const { return round_up(payload_bytes() + kTrailerBytes, kSlotAlign); }

Status check_group(const GroupGeometry& group) {
  if (group.pages.empty()) return {Code::invalid, "a KV group needs at least one page; got none"};
  if (group.num_blocks < 1) {
    return {Code::invalid, "num_blocks is " + std::to_string(group.num_blocks) + "; it must be at least 1"};
  }
  if (group.blocks_per_chunk < 1 || group.blocks_per_chunk > group.num_blocks) {
    return {Code::invalid, "blocks_per_chunk is " + std::to_string(group.blocks_per_chunk) + "; it must be 1 to " +
                               std::to_string(group.num_blocks) + ", the number of blocks"};
  }
  std::int64_t payload = 0;
  for (const PageRun& page : group.pages) {
    std::int64_t chunk_bytes = 0;
    if (page.bytes < 1 || __builtin_mul_overflow(page.bytes, group.blocks_per_chunk, &chunk_bytes) ||
        __builtin_add_overflow(payload, chunk_bytes, &payload)) {
      return {Code::invalid, "a page of " + std::to_string(page.bytes) +
                                 " bytes: pages must have at least 1 byte and a " + "chunk of " +
                                 std::to_string(group.blocks_per_chunk) + " blocks less than 2^63"};
    }
  }
  if (payload > std::numeric_limits<std::int64_t>::max() - kTrailerBytes - kSlotAlign) {
    return {Code::invalid, "a chunk of " + std::to_string(payload) + " bytes is too large: lower blocks_per_chunk"};
  }
  return {};
}

}  // namespace kvo
