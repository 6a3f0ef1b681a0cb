#include <cuda_runtime.h>

#include <algorithm>

#include "cuda/check.h"
#include "kernels/copy_pages.h"

namespace kvo {

namespace {

constexpr int kThreads = 512, kWarp = 32, kWarps = kThreads / kWarp;
// What a warp copies at a time: eight words of 16 bytes a lane in flight. Several times what a link or a share of the
// memory needs to hide its latency.
constexpr int kUnroll = 8;
constexpr std::uint32_t kUnitBytes = kWarp * kUnroll * 16;
constexpr std::int64_t kMostUnits = std::int64_t{1} << 31;

// Kernel arguments. Two sizes, because all of it is sent with every launch.
template <int kImages, int kBlocks>
struct Launch {
  static constexpr int kMostImages = kImages, kMostBlocks = kBlocks;
  const PageEntry* pages;
  std::uint32_t page_count, blocks_per_chunk, skip_blocks, units_per_page, units;
  bool store;
  std::byte* images[kImages];
  std::uint32_t blocks[kBlocks];
};
using SmallLaunch = Launch<32, 256>;
using LargeLaunch = Launch<512, kMostBlocksPerLaunch>;

// Read once, by nobody else, and not written while the kernel runs: past L1 and by the read-only way.
__device__ uint4 read(const uint4* from) {
  uint4 word;
  asm volatile("ld.global.nc.L1::no_allocate.v4.u32 {%0, %1, %2, %3}, [%4];"
               : "=r"(word.x), "=r"(word.y), "=r"(word.z), "=r"(word.w)
               : "l"(from));
  return word;
}
template <class Word>
__device__ Word read(const Word* from) {
  return __ldg(from);
}

// Bytes before the first and after the last whole word go one by one.
template <class Word>
__device__ void copy_words(char* to, const char* from, std::uint32_t bytes, std::uint32_t lane) {
  const auto misaligned = static_cast<std::uint32_t>(reinterpret_cast<std::uintptr_t>(to) % sizeof(Word));
  const std::uint32_t head = min(bytes, misaligned ? static_cast<std::uint32_t>(sizeof(Word)) - misaligned : 0u);
  const std::uint32_t words = (bytes - head) / sizeof(Word);
  const auto* source = reinterpret_cast<const Word*>(from + head);
  auto* target = reinterpret_cast<Word*>(to + head);
  for (std::uint32_t first = lane; first < words; first += kWarp * kUnroll) {
    Word held[kUnroll];
#pragma unroll
    for (int k = 0; k < kUnroll; ++k)
      if (first + k * kWarp < words) held[k] = read(source + first + k * kWarp);
#pragma unroll
    for (int k = 0; k < kUnroll; ++k)
      if (first + k * kWarp < words) __stcs(target + first + k * kWarp, held[k]);
  }
  const std::uint32_t tail = head + words * static_cast<std::uint32_t>(sizeof(Word));
  if (lane < head) to[lane] = from[lane];
  if (tail + lane < bytes) to[tail + lane] = from[tail + lane];
}

// The widest word on which both sides agree.
__device__ void copy_unit(char* to, const char* from, std::uint32_t bytes, std::uint32_t lane) {
  const auto apart =
      static_cast<std::uint32_t>(reinterpret_cast<std::uintptr_t>(to) ^ reinterpret_cast<std::uintptr_t>(from));
  if (apart % 16 == 0)
    copy_words<uint4>(to, from, bytes, lane);
  else if (apart % 4 == 0)
    copy_words<unsigned>(to, from, bytes, lane);
  else
    for (std::uint32_t at = lane; at < bytes; at += kWarp) to[at] = from[at];
}

template <class Arguments>
__global__ void __launch_bounds__(kThreads) copy_pages(const __grid_constant__ Arguments launch) {
  const std::uint32_t lane = threadIdx.x % kWarp, warps = gridDim.x * kWarps;
  for (std::uint32_t unit = blockIdx.x * kWarps + threadIdx.x / kWarp; unit < launch.units; unit += warps) {
    const std::uint32_t part = unit % launch.units_per_page, page_of_all = unit / launch.units_per_page;
    const std::uint32_t block = page_of_all % launch.blocks_per_chunk;
    const std::uint32_t row = page_of_all / launch.blocks_per_chunk;
    const std::uint32_t chunk = row / launch.page_count;
    const PageEntry page = launch.pages[row % launch.page_count];
    const std::int64_t start = static_cast<std::int64_t>(part) * kUnitBytes;
    if (start >= page.bytes || (chunk == 0 && block < launch.skip_blocks)) continue;
    const auto bytes = static_cast<std::uint32_t>(min(page.bytes - start, static_cast<std::int64_t>(kUnitBytes)));
    const std::int64_t id = launch.blocks[chunk * launch.blocks_per_chunk + block];
    char* device = reinterpret_cast<char*>(page.address) + id * page.block_stride + start;
    char* image = reinterpret_cast<char*>(launch.images[chunk]) + page.chunk_offset + block * page.bytes + start;
    copy_unit(launch.store ? image : device, launch.store ? device : image, bytes, lane);
  }
}

template <class Arguments>
Status launch_one(cudaStream_t stream, const PageCopy& copy, std::int64_t units_per_page) {
  Arguments launch;
  launch.pages = copy.pages;
  launch.page_count = static_cast<std::uint32_t>(copy.page_count);
  launch.blocks_per_chunk = static_cast<std::uint32_t>(copy.blocks_per_chunk);
  launch.skip_blocks = static_cast<std::uint32_t>(copy.skip_blocks);
  launch.units_per_page = static_cast<std::uint32_t>(units_per_page);
  launch.units = static_cast<std::uint32_t>(copy.blocks.size() * copy.page_count * units_per_page);
  launch.store = copy.direction == Direction::store;
  std::copy(copy.images.begin(), copy.images.end(), launch.images);
  std::copy(copy.blocks.begin(), copy.blocks.end(), launch.blocks);
  const auto ctas = std::min<std::int64_t>(copy.most_ctas, (launch.units + kWarps - 1) / kWarps);
  copy_pages<<<static_cast<unsigned>(ctas), kThreads, 0, stream>>>(launch);
  KVO_CUDA_TRY(cudaGetLastError());
  return {};
}

}  // namespace

Status load_copy_pages() {
  cudaFuncAttributes attributes;
  KVO_CUDA_TRY(cudaFuncGetAttributes(&attributes, copy_pages<SmallLaunch>));
  KVO_CUDA_TRY(cudaFuncGetAttributes(&attributes, copy_pages<LargeLaunch>));
  return {};
}

Status launch_copy_pages(StreamHandle stream, const PageCopy& copy) {
  auto handle = reinterpret_cast<cudaStream_t>(stream);
  const std::int64_t units_per_page = (copy.longest_page_bytes + kUnitBytes - 1) / kUnitBytes;
  const std::int64_t units_per_chunk = units_per_page * copy.page_count * copy.blocks_per_chunk;
  const auto most = std::min({static_cast<std::int64_t>(LargeLaunch::kMostImages),
                              LargeLaunch::kMostBlocks / copy.blocks_per_chunk, kMostUnits / units_per_chunk});
  if (most == 0) return Status(Code::unsupported, "a chunk too large for a copy kernel");
  PageCopy part = copy;
  for (std::size_t first = 0; first < copy.images.size(); first += part.images.size()) {
    part.images = copy.images.subspan(first, std::min<std::size_t>(most, copy.images.size() - first));
    part.blocks = copy.blocks.subspan(first * copy.blocks_per_chunk, part.images.size() * copy.blocks_per_chunk);
    part.skip_blocks = first == 0 ? copy.skip_blocks : 0;
    const bool small = part.images.size() <= SmallLaunch::kMostImages && part.blocks.size() <= SmallLaunch::kMostBlocks;
    KVO_TRY(small ? launch_one<SmallLaunch>(handle, part, units_per_page)
                  : launch_one<LargeLaunch>(handle, part, units_per_page));
  }
  return {};
}

}  // namespace kvo
