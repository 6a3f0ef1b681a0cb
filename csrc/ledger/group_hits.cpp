#include "ledger/group_hits.h"

#include <algorithm>
#include <numeric>

namespace kvo {

namespace {

// The ends that are to be tried are multiples of this: the least common multiple of all chunks; 0 if it is over `most`.
std::int64_t unit_tokens(std::span<const GroupChunks> groups, std::int64_t most) {
  std::int64_t unit = 1;
  for (const GroupChunks& group : groups) {
    const std::int64_t factor = group.needs.tokens_per_chunk / std::gcd(unit, group.needs.tokens_per_chunk);
    if (factor > most / unit) return 0;
    unit *= factor;
  }
  return unit;
}

// Asked for ends in falling order, so that it goes over a group's chunks only once.
class HoleFinder {
 public:
  explicit HoleFinder(const GroupChunks& group) : group_(group), hole_(static_cast<std::int64_t>(group.there.size())) {}

  bool complete(std::int64_t start_tokens, std::int64_t end_tokens) {
    const auto [first, end] = group_.needs.chunks(start_tokens, end_tokens);
    hole_ = std::min(hole_, end - 1);
    while (hole_ >= 0 && group_.there[hole_]) --hole_;
    return hole_ < first;
  }

 private:
  const GroupChunks& group_;
  std::int64_t hole_;  // the last chunk that is missing before the end asked for last
};

}  // namespace

std::pair<std::int64_t, std::int64_t> GroupNeeds::chunks(std::int64_t start_tokens, std::int64_t end_tokens) const {
  const std::int64_t first_token = std::max(start_tokens, end_tokens - window_tokens);
  const std::int64_t start = start_tokens / tokens_per_chunk;
  return {first_token / tokens_per_chunk - start, end_tokens / tokens_per_chunk - start};
}

std::int64_t hit_end_tokens(std::span<const GroupChunks> groups, std::int64_t start_tokens) {
  std::int64_t most = groups.empty() ? 0 : kWholePrefix;
  std::vector<HoleFinder> finders;
  for (const GroupChunks& group : groups) {
    const std::int64_t per_chunk = group.needs.tokens_per_chunk;
    most = std::min(most, (start_tokens / per_chunk + static_cast<std::int64_t>(group.there.size())) * per_chunk);
    finders.emplace_back(group);
  }
  const std::int64_t unit = unit_tokens(groups, most);
  if (unit == 0) return start_tokens;
  for (std::int64_t end = most - most % unit; end > start_tokens; end -= unit) {
    const auto complete = [&](HoleFinder& finder) { return finder.complete(start_tokens, end); };
    if (std::ranges::all_of(finders, complete)) return end;
  }
  return start_tokens;
}

}  // namespace kvo
