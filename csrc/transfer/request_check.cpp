#include "transfer/request_check.h"

#include <algorithm>

namespace kvo {

namespace {

std::string number(std::int64_t value) { return std::to_string(value); }

Status invalid(std::string message) { return Status(Code::invalid, std::move(message)); }

}  // namespace

std::int64_t DuplicateFinder::copy(std::span<const std::int64_t> ids, std::int64_t first, std::int64_t limit,
                                   IdList& out) {
  const auto count = static_cast<std::int64_t>(ids.size());
  if (++round_ == 0) std::fill_n(seen_.get(), limit_, 0), round_ = 1;
  std::uint32_t* const seen = seen_.get();
  std::fill_n(out.ids.get(), std::min(first, count), 0);
  for (std::int64_t i = first; i < count; ++i) {
    const std::int64_t id = ids[i];
    if (static_cast<std::uint64_t>(id) >= static_cast<std::uint64_t>(limit) || seen[id] == round_) return i;
    seen[id] = round_;
    out.ids[i] = static_cast<std::uint32_t>(id);
  }
  return count;
}

RequestCheck::RequestCheck(const std::vector<GroupGeometry>& groups, const ExtentPlan& extents,
                           std::int64_t arena_bytes)
    : groups_(groups), extents_(extents) {
  const std::int64_t extent_count = (arena_bytes + extents.extent_bytes - 1) / extents.extent_bytes;
  for (std::size_t group = 0; group < groups.size(); ++group) {
    blocks_seen_.emplace_back(groups[group].num_blocks);
    slots_seen_.emplace_back(extent_count * extents.slots_per_extent(static_cast<int>(group)));
  }
}

Status RequestCheck::check(const Request& request, std::int64_t ready_bytes, IdList& blocks, IdList& slots) {
  KVO_TRY(check_shape(request));
  DuplicateFinder& blocks_seen = blocks_seen_[request.group];
  const std::int64_t bad = blocks_seen.copy(request.blocks, request.skip_blocks, blocks_seen.limit(), blocks);
  if (bad < blocks.count) return bad_block(request, bad);
  const std::int64_t ready = ready_slots(request.group, ready_bytes);
  const std::int64_t bad_position = slots_seen_[request.group].copy(request.slots, 0, ready, slots);
  if (bad_position == slots.count) return {};
  KVO_TRY(check_slot(request.group, request.slots[bad_position], ready_bytes));
  return invalid("slot " + number(request.slots[bad_position]) + " is given twice (again at position " +
                 number(bad_position) + "): a slot may appear once in a transfer");
}

// Slots below this number are ready: extents become ready in order, and slots in each of them.
std::int64_t RequestCheck::ready_slots(int group, std::int64_t ready_bytes) const {
  const std::int64_t extent = ready_bytes / extents_.extent_bytes;
  return extent * extents_.slots_per_extent(group) + extents_.usable_slots(group, extent, ready_bytes);
}

Status RequestCheck::check_shape(const Request& request) const {
  KVO_TRY(check_group(request.group));
  const std::int64_t per_chunk = groups_[request.group].blocks_per_chunk;
  const auto blocks = static_cast<std::int64_t>(request.blocks.size());
  const auto slots = static_cast<std::int64_t>(request.slots.size());
  if (blocks != slots * per_chunk)
    return invalid(number(blocks) + " block ids for " + number(slots) + " chunks: a chunk of group " +
                   number(request.group) + " has " + number(per_chunk) + " blocks, so give " +
                   number(slots * per_chunk));
  if (request.skip_blocks < 0 || request.skip_blocks >= per_chunk)
    return invalid("skip_blocks " + number(request.skip_blocks) + ": allowed are 0 to " + number(per_chunk - 1) +
                   " (blocks_per_chunk - 1); leave whole chunks out instead");
  return {};
}

Status RequestCheck::bad_block(const Request& request, std::int64_t position) const {
  const std::int64_t block = request.blocks[position], limit = blocks_seen_[request.group].limit();
  if (block < 0 || block >= limit)
    return invalid("block id " + number(block) + " at position " + number(position) + ": group " +
                   number(request.group) + " has blocks 0 to " + number(limit - 1));
  return invalid("block id " + number(block) + " is given twice (again at position " + number(position) +
                 "): a block may appear once in a transfer");
}

Status RequestCheck::check_group(int group) const {
  if (group >= 0 && group < static_cast<int>(groups_.size())) return {};
  return invalid("group " + number(group) + ": the layout has groups 0 to " + number(groups_.size() - 1));
}

Status RequestCheck::check_slot(int group, std::int64_t slot, std::int64_t ready_bytes) const {
  KVO_TRY(check_group(group));
  const std::int64_t limit = slots_seen_[group].limit();
  if (slot < 0 || slot >= limit)
    return invalid("slot " + number(slot) + ": group " + number(group) + " has slots 0 to " + number(limit - 1));
  if (slot < ready_slots(group, ready_bytes)) return {};
  return invalid("slot " + number(slot) + " ends at byte " +
                 number(extents_.offset_of(group, slot) + extents_.slot_bytes[group]) + " of the arena, of which " +
                 number(ready_bytes) + " bytes are ready so far");
}

bool RequestCheck::usable() const {
  const auto allocated = [](const DuplicateFinder& finder) { return finder.usable(); };
  return std::all_of(blocks_seen_.begin(), blocks_seen_.end(), allocated) &&
         std::all_of(slots_seen_.begin(), slots_seen_.end(), allocated);
}

}  // namespace kvo
