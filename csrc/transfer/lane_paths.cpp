// The lane's thread: choosing a path, and the paths that copy by kernels.
#include <algorithm>
#include <numeric>

#include "base/brief_lock.h"
#include "base/fault.h"
#include "transfer/lane.h"

namespace kvo {

namespace {

constexpr std::int64_t kLaunchCost = 16;      // in copies
constexpr std::size_t kChunksOfLaunch = 256;  // of path `kernel`; the device may cut further

// Runs of consecutive ids within chunks: with pages that touch, as many spans a page row.
std::int64_t count_runs(std::span<const std::uint32_t> blocks, std::size_t per_chunk) {
  std::int64_t runs = 0;
  for (std::size_t first = 0; first < blocks.size(); first += per_chunk) {
    ++runs;
    for (std::size_t i = first + 1; i < first + per_chunk; ++i) runs += blocks[i] != blocks[i - 1] + 1;
  }
  return runs;
}

std::size_t partial_chunks(const Transfer& transfer) { return transfer.skip_blocks > 0 ? 1 : 0; }

}  // namespace

Status Lane::make_page_table() {
  for (const GroupGeometry& geometry : options_.groups) {
    Group group{static_cast<std::int64_t>(page_entries_.size()),
                static_cast<std::int64_t>(geometry.pages.size()),
                0,
                0,
                geometry.block_bytes(),
                geometry.payload_bytes(),
                geometry.blocks_per_chunk};
    std::int64_t chunk_offset = 0;
    for (const PageRun& page : geometry.pages) {
      page_entries_.push_back({page.address, page.block_stride, page.bytes, chunk_offset});
      chunk_offset += page.bytes * geometry.blocks_per_chunk;
      group.joined_pages += page.block_stride == page.bytes;
      group.longest_page_bytes = std::max(group.longest_page_bytes, page.bytes);
    }
    groups_.push_back(group);
  }
  const auto bytes = static_cast<std::int64_t>(page_entries_.size() * sizeof(PageEntry));
  auto memory = device_->allocate(bytes);
  if (!memory.ok()) return memory.status();
  page_table_ = std::move(*memory);
  const CopySpan upload{page_table_->address(), reinterpret_cast<const std::byte*>(page_entries_.data()), bytes};
  KVO_TRY(copy_stream_->copy(std::span(&upload, 1), Direction::load));
  auto uploaded = device_->make_event(/*timed=*/false);
  if (!uploaded.ok()) return uploaded.status();
  KVO_TRY(copy_stream_->record(**uploaded));
  return page_stream_->wait(**uploaded);
}

bool Lane::can_take(Path path, int group_index) const {
  const Group& group = groups_[group_index];
  if (path == Path::dma) return true;
  if (group.blocks_per_chunk > kMostBlocksPerLaunch) return false;
  return path == Path::kernel || (staging_ && staging_->fits(group.chunk_bytes));
}

PathChoice Lane::choose(const Transfer& transfer) {
  const Group& group = groups_[transfer.group];
  const auto blocks = static_cast<std::int64_t>(blocks_.size());
  const std::int64_t pages = blocks * group.page_count;
  const std::int64_t spans =
      blocks * (group.page_count - group.joined_pages) +
      (group.joined_pages ? count_runs(blocks_, group.blocks_per_chunk) * group.joined_pages : 0);
  // A chunk is gathered whole before it is copied: one alone gains nothing from the ring, and the table is of several.
  const bool alone = slots_.size() <= partial_chunks(transfer) + 1;
  std::vector<PathCost> usable;
  for (const Path path : kPaths) {
    if (!can_take(path, transfer.group)) continue;
    if (path == Path::staged && alone && !transfer.asked_path) continue;
    const std::int64_t count = std::max<std::int64_t>(path == Path::dma ? spans : pages, 1);
    usable.push_back({path, blocks * group.block_bytes / count, count});
  }
  const auto lock = lock_briefly(mutex_);
  PathChoice choice = selector_.choose(usable, transfer.asked_path);
  // Of a chunk that is loaded in part nothing goes through the ring, whoever asks.
  if (choice.path == Path::staged && slots_.size() == partial_chunks(transfer)) choice.path = Path::kernel;
  return choice;
}

PageCopy Lane::page_copy(const Transfer& transfer) const {
  const Group& group = groups_[transfer.group];
  PageCopy copy{options_.direction,
                reinterpret_cast<const PageEntry*>(page_table_->address()) + group.first_page,
                group.page_count,
                group.longest_page_bytes,
                group.blocks_per_chunk,
                {},
                {}};
  copy.blocks = blocks_;
  copy.images = slots_;
  copy.skip_blocks = transfer.skip_blocks;
  copy.most_ctas = options_.kernel_ctas;
  return copy;
}

Status Lane::copy_by_kernel(const Transfer& transfer, std::size_t chunks) {
  PageCopy copy = page_copy(transfer);
  for (std::size_t first = 0; first < chunks; first += copy.images.size()) {
    KVO_TRY(make_room(kLaunchCost));
    if (fault::fires("copy")) return Status(Code::device, "launching a copy kernel failed (injected)");
    copy.images = std::span(slots_).subspan(first, std::min(kChunksOfLaunch, chunks - first));
    copy.blocks = std::span(blocks_).subspan(first * copy.blocks_per_chunk, copy.images.size() * copy.blocks_per_chunk);
    copy.skip_blocks = first == 0 ? transfer.skip_blocks : 0;
    KVO_TRY(route_.last->copy_pages(copy));
  }
  return {};
}

// A first chunk of which blocks are left alone goes by a kernel: the ring holds whole chunks.
Status Lane::copy_staged(const Transfer& transfer) {
  const Group& group = groups_[transfer.group];
  const std::size_t partial = partial_chunks(transfer);
  if (partial > 0) {
    KVO_TRY(route_.last->wait(*transfer.after));
    KVO_TRY(copy_by_kernel(transfer, partial));
  }
  Staging::Job job{page_copy(transfer), group.chunk_bytes, std::span(slots_).subspan(partial), options_.arena,
                   options_.cut_bytes};
  job.pages.blocks = job.pages.blocks.subspan(partial * group.blocks_per_chunk);
  job.pages.skip_blocks = 0;
  return staging_->run(job, *page_stream_, *copy_stream_, lane_was_busy_,
                       [this](std::int64_t cost) { return make_room(cost); });
}

}  // namespace kvo
