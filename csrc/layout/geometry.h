// KV geometry: tensors -> pages -> spans. Pure functions; all offsets are int64 bytes and come from strides.
#pragma once
#include <cstdint>
#include <span>
#include <vector>

#include "base/status.h"

namespace kvo {

// One tensor as its owner describes it; strides in bytes.
struct TensorView {
  std::uintptr_t address;
  std::int64_t item_bytes;
  std::vector<std::int64_t> shape;
  std::vector<std::int64_t> strides;
  int block_dim;
};

// One page of every block: block b's bytes are [address + b * block_stride, + bytes). The stride is 0 for a single
// block.
struct PageRun {
  std::uintptr_t address;
  std::int64_t block_stride;
  std::int64_t bytes;
  bool operator==(const PageRun&) const = default;
};

// All that a KV group's chunks are made of. In a slot, page p of the chunk's j-th block lies at
// blocks_per_chunk * (bytes of the pages before p) + j * pages[p].bytes: neighbours on the device stay neighbours.
struct GroupGeometry {
  std::vector<PageRun> pages;
  std::int64_t num_blocks = 0;
  std::int64_t blocks_per_chunk = 1;

  std::int64_t block_bytes() const;    // sum of page bytes
  std::int64_t payload_bytes() const;  // of a chunk
  std::int64_t slot_bytes() const;     // payload + padding + trailer, a multiple of 4 KiB
};

inline constexpr std::int64_t kTrailerBytes = 512;
inline constexpr std::int64_t kSlotAlign = 4096;

// The contiguous pages of one tensor (several where K and V, layers or heads lie apart), lowest address first.
Result<std::vector<PageRun>> pages_of(const TensorView& tensor);
// Drops identical pages, joins pages that touch and have the same stride, refuses partial overlaps between any blocks.
// Keeps the order of the list (a joined page stands where its first part stood), so that it does not depend on where
// tensors were allocated.
Result<std::vector<PageRun>> merge_pages(std::vector<PageRun> pages, std::int64_t num_blocks);
// Invalid unless there are pages, blocks_per_chunk is 1 to num_blocks, and a chunk's bytes fit in int64.
Status check_group(const GroupGeometry& group);

// A piece of a transfer that is contiguous on both sides.
struct Span {
  std::uintptr_t device;
  std::int64_t host;  // offset in the arena
  std::int64_t bytes;
};

struct ChunkBatch {
  std::span<const std::int64_t> blocks;        // chunks.size() * blocks_per_chunk block ids
  std::span<const std::int64_t> slot_offsets;  // where each chunk's slot starts in the arena
  std::int64_t skip_blocks = 0;                // leading blocks of the first chunk that are not touched
};

// Appends the merged spans to `out`. Spans never cross a multiple of `cut_bytes` of arena offset (registration pieces;
// 0: no cuts). Checks nothing: sizes, block ids and skip_blocks (0 to blocks_per_chunk) are the caller's to check.
void plan_spans(const GroupGeometry& group, const ChunkBatch& batch, std::int64_t cut_bytes, std::vector<Span>& out);

}  // namespace kvo
