#include "transfer/request_check.h"

#include <algorithm>

namespace kvo {

namespace {

std::string number(std::int64_t value) { return std::to_string(value); }

Status invalid(std::string message) { return Status(Code::invalid, std::move(message)); }

}  // namespace

void DuplicateFinder::begin() {
  if (++round_ != 0) return;
  std::fill_n(seen_.get(), limit_, 0);
  round_ = 1;
}

RequestCheck::RequestCheck(const std::vector<GroupGeometry>& groups, const ExtentPlan& extents, std::int64_t arena_bytes)
    : groups_(groups), extents_(extents) {
  const std::int64_t extent_count = (arena_bytes + extents.extent_bytes - 1) / extents.extent_bytes;
  for (std::size_t group = 0; group < groups.size(); ++group) {
    blocks_seen_.emplace_back(groups[group].num_blocks);
    slots_seen_.emplace_back(extent_count * extents.slots_per_extent(static_cast<int>(group)));
  }
}

Status RequestCheck::check(const Request& request, std::int64_t ready_bytes, std::vector<std::int64_t>& slot_offsets) {
  KVO_TRY(check_shape(request));
  KVO_TRY(check_blocks(request));
  return check_slots(request, ready_bytes, slot_offsets);
}

Status RequestCheck::check_shape(const Request& request) const {
  if (request.group < 0 || request.group >= static_cast<int>(groups_.size()))
    return invalid("group " + number(request.group) + ": the layout has groups 0 to " + number(groups_.size() - 1));
  const std::int64_t per_chunk = groups_[request.group].blocks_per_chunk;
  const auto blocks = static_cast<std::int64_t>(request.blocks.size());
  const auto slots = static_cast<std::int64_t>(request.slots.size());
  if (blocks != slots * per_chunk)
    return invalid(number(blocks) + " block ids for " + number(slots) + " chunks: a chunk of group " +
                   number(request.group) + " has " + number(per_chunk) + " blocks, so give " + number(slots * per_chunk));
  if (request.skip_blocks < 0 || request.skip_blocks >= per_chunk)
    return invalid("skip_blocks " + number(request.skip_blocks) + ": allowed are 0 to " + number(per_chunk - 1) +
                   " (blocks_per_chunk - 1); leave whole chunks out instead");
  return {};
}

Status RequestCheck::check_blocks(const Request& request) {
  DuplicateFinder& seen = blocks_seen_[request.group];
  seen.begin();
  for (std::size_t i = std::min<std::size_t>(request.skip_blocks, request.blocks.size()); i < request.blocks.size(); ++i) {
    const std::int64_t block = request.blocks[i];
    if (!seen.in_range(block))
      return invalid("block id " + number(block) + " at position " + number(i) + ": group " + number(request.group) +
                     " has blocks 0 to " + number(seen.limit() - 1));
    if (seen.repeated(block))
      return invalid("block id " + number(block) + " is given twice (again at position " + number(i) +
                     "): a block may appear once in a transfer");
  }
  return {};
}

Status RequestCheck::check_slots(const Request& request, std::int64_t ready_bytes,
                                 std::vector<std::int64_t>& slot_offsets) {
  DuplicateFinder& seen = slots_seen_[request.group];
  const std::int64_t slot_bytes = extents_.slot_bytes[request.group];
  seen.begin();
  slot_offsets.clear();
  slot_offsets.reserve(request.slots.size());
  for (std::size_t i = 0; i < request.slots.size(); ++i) {
    const std::int64_t slot = request.slots[i];
    if (!seen.in_range(slot))
      return invalid("slot " + number(slot) + " at position " + number(i) + ": group " + number(request.group) +
                     " has slots 0 to " + number(seen.limit() - 1));
    const std::int64_t offset = extents_.offset_of(request.group, slot);
    if (offset + slot_bytes > ready_bytes)
      return invalid("slot " + number(slot) + " ends at byte " + number(offset + slot_bytes) + " of the arena, of which " +
                     number(ready_bytes) + " bytes are ready so far");
    if (seen.repeated(slot))
      return invalid("slot " + number(slot) + " is given twice (again at position " + number(i) +
                     "): a slot may appear once in a transfer");
    slot_offsets.push_back(offset);
  }
  return {};
}

}  // namespace kvo
