// How far a prefix is there in all KV groups of a model: up to the last token at which each has what it needs. Pure
// functions, linear in the number of chunks.
//
// Full attention needs every chunk of the prefix; a sliding window those with the last tokens before the hit's end;
// recurrent layers their state at the end, which lies in the last chunk: a window of one token.
#pragma once
#include <cstdint>
#include <limits>
#include <span>
#include <utility>
#include <vector>

namespace kvo {

constexpr std::int64_t kWholePrefix = std::numeric_limits<std::int64_t>::max();

struct GroupNeeds {
  std::int64_t tokens_per_chunk = 1;
  std::int64_t window_tokens = kWholePrefix;  // so many before the hit's end

  // The chunks [first, end) for a hit of the tokens from start_tokens to end_tokens, a chunk's end. They are counted
  // from the chunk that start_tokens lies in.
  std::pair<std::int64_t, std::int64_t> chunks(std::int64_t start_tokens, std::int64_t end_tokens) const;
};

// One group and which of its chunks are there, counted likewise; behind the last none is.
struct GroupChunks {
  GroupNeeds needs;
  std::vector<bool> there;
};

// The largest end of a chunk in every group up to which all groups have what they need; start_tokens when there is none
// behind it.
std::int64_t hit_end_tokens(std::span<const GroupChunks> groups, std::int64_t start_tokens);

}  // namespace kvo
