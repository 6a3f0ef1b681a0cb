// Copying pages of whole chunks in one kernel launch: between the blocks on the device and an image of each chunk,
// which lies as in its slot, elsewhere: in the slot itself (path `kernel`) or in the ring (path `staged`).
#pragma once
#include <span>

#include "base/copy_span.h"

namespace kvo {

// One page of every block of a group, and where it lies in a chunk's image: block j's at chunk_offset + j * bytes.
struct PageEntry {
  std::uint64_t address;
  std::int64_t block_stride, bytes, chunk_offset;
};

struct PageCopy {
  Direction direction;     // store: device blocks to images
  const PageEntry* pages;  // a table in device memory
  std::int64_t page_count, longest_page_bytes;
  std::int64_t blocks_per_chunk;
  std::span<const std::uint32_t> blocks;  // images.size() * blocks_per_chunk
  std::span<std::byte* const> images;     // as the device addresses them
  std::int64_t skip_blocks = 0;           // leading blocks of the first image that are left alone
  int most_ctas = 16;                     // a bound on the SMs that are taken from the model
};

// Chunks of more blocks than this are not copied by kernels.
inline constexpr std::int64_t kMostBlocksPerLaunch = 4096;

}  // namespace kvo
