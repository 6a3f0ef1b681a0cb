#include "transfer/request_check.h"

#include <algorithm>
#if defined(__SSE2__)
#include <emmintrin.h>
#endif

namespace kvo {

namespace {

std::string number(std::int64_t value) { return std::to_string(value); }

Status invalid(std::string message) { return Status(Code::invalid, std::move(message)); }

using Ids = std::span<const std::int64_t>;

// Copied and checked at a time: what was read is still in the first cache when it is looked at again.
constexpr std::size_t kStep = 128;
// Copies of lists as long as this do not stay in the first cache, and a list that was used before lies in another
// core's: to fetch what is overwritten would take longer than all the rest.
constexpr std::size_t kLongIds = 16384;

// ids to `to`, and whether all are in [0, limit). One pass without a branch, of operations on 32 bits that every x86-64
// has as vectors: 20,000 ids in 10 us. limit < 2^31.
bool copy_in_range(Ids ids, std::int64_t limit, std::uint32_t* __restrict to) {
  const std::int64_t* __restrict from = ids.data();
  const auto count = static_cast<std::int64_t>(ids.size());
  const auto small_limit = static_cast<std::int32_t>(limit);
  std::uint64_t bits = 0;
  std::int32_t over = 0;
  for (std::int64_t i = 0; i < count; ++i) {
    const auto id = static_cast<std::int32_t>(from[i]);
    bits |= static_cast<std::uint64_t>(from[i]);
    over |= -static_cast<std::int32_t>(id >= small_limit);
    to[i] = static_cast<std::uint32_t>(id);
  }
  return bits >> 31 == 0 && over == 0;
}

#if defined(__SSE2__)
// The same past the caches, for `to` at a multiple of 16 bytes.
bool stream_in_range(Ids ids, std::int64_t limit, std::uint32_t* to) {
  const std::size_t fours = ids.size() / 4 * 4;
  const __m128i last = _mm_set1_epi32(static_cast<std::int32_t>(limit - 1));
  __m128i bad = _mm_setzero_si128();  // high halves that are not 0; sign bits of what is negative or over
  for (std::size_t i = 0; i < fours; i += 4) {
    const auto half = [&](std::size_t at) {
      return _mm_castsi128_ps(_mm_loadu_si128(reinterpret_cast<const __m128i*>(&ids[at])));
    };
    const __m128 a = half(i), b = half(i + 2);
    const __m128i low = _mm_castps_si128(_mm_shuffle_ps(a, b, _MM_SHUFFLE(2, 0, 2, 0)));
    const __m128i high = _mm_castps_si128(_mm_shuffle_ps(a, b, _MM_SHUFFLE(3, 1, 3, 1)));
    const __m128i in_range = _mm_cmpeq_epi32(high, _mm_setzero_si128());
    bad = _mm_or_si128(bad, _mm_or_si128(_mm_andnot_si128(in_range, _mm_set1_epi32(-1)),
                                         _mm_or_si128(_mm_srai_epi32(low, 31), _mm_cmpgt_epi32(low, last))));
    _mm_stream_si128(reinterpret_cast<__m128i*>(to + i), low);
  }
  return _mm_movemask_epi8(bad) == 0 && copy_in_range(ids.subspan(fours), limit, to + fours);
}

bool can_stream(const std::uint32_t* to, std::size_t count) {
  return count >= kLongIds && reinterpret_cast<std::uintptr_t>(to) % 16 == 0;
}
#else
bool stream_in_range(Ids ids, std::int64_t limit, std::uint32_t* to) { return copy_in_range(ids, limit, to); }
bool can_stream(const std::uint32_t*, std::size_t) { return false; }
#endif

Ids step_of(Ids ids, std::size_t at) {
  return ids.subspan(std::min(at, ids.size()), std::min(kStep, ids.size() - std::min(at, ids.size())));
}

// Both lists in one loop: two chains of loads and stores at a time take two thirds of the time.
bool any_repeated(Ids a, SeenIds& seen_a, Ids b, SeenIds& seen_b) {
  const std::uint8_t round_a = seen_a.round(), round_b = seen_b.round();
  std::uint8_t* const last_a = seen_a.last_round();
  std::uint8_t* const last_b = seen_b.last_round();
  const std::size_t both = std::min(a.size(), b.size());
  unsigned repeated = 0;
  for (std::size_t i = 0; i < both; ++i) {
    repeated |= last_a[a[i]] == round_a, last_a[a[i]] = round_a;
    repeated |= last_b[b[i]] == round_b, last_b[b[i]] = round_b;
  }
  for (std::size_t i = both; i < a.size(); ++i) repeated |= last_a[a[i]] == round_a, last_a[a[i]] = round_a;
  for (std::size_t i = both; i < b.size(); ++i) repeated |= last_b[b[i]] == round_b, last_b[b[i]] = round_b;
  return repeated != 0;
}

}  // namespace

void SeenIds::begin_round() {
  constexpr std::int64_t kSweepRounds = 128;
  const std::int64_t step = limit_ / kSweepRounds + 1;
  const std::int64_t count = std::min(step, limit_ - next_cleared_);
  std::fill_n(last_round_.get() + next_cleared_, count, 0);
  next_cleared_ = next_cleared_ + count == limit_ ? 0 : next_cleared_ + count;
  round_ = round_ == 255 ? 1 : round_ + 1;
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

Status RequestCheck::check(const Request& request, std::int64_t ready_bytes, RequestIds& ids) {
  KVO_TRY(check_shape(request));
  IdList &blocks = ids.blocks, &slots = ids.slots;
  SeenIds &blocks_seen = blocks_seen_[request.group], &slots_seen = slots_seen_[request.group];
  blocks_seen.begin_round(), slots_seen.begin_round();
  const std::int64_t skip = std::min(request.skip_blocks, blocks.count);
  const std::int64_t ready = extents_.slots_below(request.group, ready_bytes);
  std::fill_n(blocks.ids.get(), skip, 0);
  const std::span given(request.blocks.subspan(skip));
  const auto copy_blocks = can_stream(blocks.ids.get() + skip, given.size()) ? stream_in_range : copy_in_range;
  const auto copy_slots = can_stream(slots.ids.get(), request.slots.size()) ? stream_in_range : copy_in_range;
  const std::size_t most = std::max(given.size(), request.slots.size());
  for (std::size_t at = 0; at < most; at += kStep) {
    const Ids some = step_of(given, at), some_slots = step_of(request.slots, at);
    const bool in_range = copy_blocks(some, blocks_seen.limit(), blocks.ids.get() + skip + at) &&
                          copy_slots(some_slots, ready, slots.ids.get() + at);
    if (!in_range || any_repeated(some, blocks_seen, some_slots, slots_seen)) return explain(request, ready_bytes);
  }
  return {};
}

// A request that is known to be bad: the first thing that is wrong with it.
Status RequestCheck::explain(const Request& request, std::int64_t ready_bytes) {
  SeenIds &blocks_seen = blocks_seen_[request.group], &slots_seen = slots_seen_[request.group];
  blocks_seen.begin_round(), slots_seen.begin_round();
  for (std::size_t i = request.skip_blocks; i < request.blocks.size(); ++i) {
    const std::int64_t block = request.blocks[i];
    if (block < 0 || block >= blocks_seen.limit())
      return invalid("block id " + number(block) + " at position " + number(i) + ": group " + number(request.group) +
                     " has blocks 0 to " + number(blocks_seen.limit() - 1));
    if (blocks_seen.see(block))
      return invalid("block id " + number(block) + " is given twice (again at position " + number(i) +
                     "): a block may appear once in a transfer");
  }
  for (std::size_t i = 0; i < request.slots.size(); ++i) {
    KVO_TRY(check_slot(request.group, request.slots[i], ready_bytes));
    if (slots_seen.see(request.slots[i]))
      return invalid("slot " + number(request.slots[i]) + " is given twice (again at position " + number(i) +
                     "): a slot may appear once in a transfer");
  }
  return invalid("the request is bad");  // not reached
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

Status RequestCheck::check_group(int group) const {
  if (group >= 0 && group < static_cast<int>(groups_.size())) return {};
  return invalid("group " + number(group) + ": the layout has groups 0 to " + number(groups_.size() - 1));
}

Status RequestCheck::check_slot(int group, std::int64_t slot, std::int64_t ready_bytes) const {
  KVO_TRY(check_group(group));
  const std::int64_t limit = slots_seen_[group].limit();
  if (slot < 0 || slot >= limit)
    return invalid("slot " + number(slot) + ": group " + number(group) + " has slots 0 to " + number(limit - 1));
  if (slot < extents_.slots_below(group, ready_bytes)) return {};
  return invalid("slot " + number(slot) + " ends at byte " +
                 number(extents_.offset_of(group, slot) + extents_.slot_bytes[group]) + " of the arena, of which " +
                 number(ready_bytes) + " bytes are ready so far");
}

bool RequestCheck::usable() const {
  const auto allocated = [](const SeenIds& seen) { return seen.usable(); };
  return std::all_of(blocks_seen_.begin(), blocks_seen_.end(), allocated) &&
         std::all_of(slots_seen_.begin(), slots_seen_.end(), allocated);
}

}  // namespace kvo
