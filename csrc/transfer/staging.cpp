#include "transfer/staging.h"

#include <algorithm>

#include "base/fault.h"

namespace kvo {

namespace {

constexpr std::int64_t kImageAlign = 256;
constexpr std::int64_t kLeastPieces = 2;
constexpr int kEventPairs = 64;             // most pieces in use
constexpr std::int64_t kGrowth = 4;         // from piece to piece: gathering is far faster than the link
constexpr std::int64_t kTransferShare = 4;  // a small transfer is cut too, or its two halves would not overlap
constexpr std::int64_t kPieceCost = 16;     // of a launch, waits and events, in copies

}  // namespace

Result<std::unique_ptr<Staging>> Staging::create(Device& device, const StagingOptions& options, Half half,
                                                 std::int64_t largest_chunk_bytes) {
  const std::int64_t chunk = round_up(largest_chunk_bytes, kImageAlign), most = half.bytes / kLeastPieces;
  std::int64_t piece_bytes = std::min(options.piece_bytes, most);
  if (chunk > piece_bytes && chunk <= most) piece_bytes = chunk;
  piece_bytes = round_down(piece_bytes, kImageAlign);
  std::unique_ptr<Staging> staging(new Staging(options, std::move(half)));
  staging->piece_bytes_ = piece_bytes;
  for (int i = 0; i < kEventPairs; ++i) {
    auto filled = device.make_event(/*timed=*/false), drained = device.make_event(/*timed=*/false);
    if (!filled.ok() || !drained.ok()) return filled.ok() ? drained.status() : filled.status();
    staging->unused_.push_back({0, 0, std::move(*filled), std::move(*drained)});
  }
  return staging;
}

Status Staging::run(const Job& job, Stream& page_stream, Stream& copy_stream, bool lane_is_busy,
                    const std::function<Status(std::int64_t)>& make_room) {
  const bool store = job.pages.direction == Direction::store;
  Stream& filling = store ? page_stream : copy_stream;
  Stream& draining = store ? copy_stream : page_stream;
  cut(job, lane_is_busy);
  std::size_t first = 0;
  for (const std::size_t count : counts_) {
    Piece piece;
    KVO_TRY(take(static_cast<std::int64_t>(count) * round_up(job.chunk_bytes, kImageAlign), filling, piece));
    plan_piece(job, first, count, half_.address + piece.begin);
    PageCopy pages = job.pages;
    pages.most_ctas = options_.ctas;
    pages.images = images_;
    pages.blocks = job.pages.blocks.subspan(first * pages.blocks_per_chunk, count * pages.blocks_per_chunk);
    first += count;
    Status passed = make_room(kPieceCost + static_cast<std::int64_t>(copies_.size()));
    if (passed.ok() && fault::fires("copy")) passed = Status(Code::device, "copying a piece failed (injected)");
    if (passed.ok()) passed = pass(job, pages, piece, filling, draining);
    in_use_.push_back(std::move(piece));
    KVO_TRY(passed);
  }
  return {};
}

// What does not overlap with the link is the gathering of the first piece, or the scattering of the last one: that
// piece is small, and from there on they grow. An earlier transfer hides the first one.
void Staging::cut(const Job& job, bool lane_is_busy) {
  const bool store = job.pages.direction == Direction::store;
  const std::int64_t share = static_cast<std::int64_t>(job.slots.size()) * job.chunk_bytes / kTransferShare;
  const std::int64_t most = std::clamp(share, std::min(options_.small_piece_bytes, piece_bytes_), piece_bytes_);
  std::int64_t bytes = store && lane_is_busy ? most : std::min(options_.small_piece_bytes, most);
  counts_.clear();
  for (std::size_t left = job.slots.size(); left > 0; bytes = std::min(kGrowth * bytes, most)) {
    counts_.push_back(std::min(chunks_of(job, bytes), left));
    left -= counts_.back();
  }
  if (!store) std::reverse(counts_.begin(), counts_.end());
}

std::size_t Staging::chunks_of(const Job& job, std::int64_t bytes) const {
  return static_cast<std::size_t>(std::max<std::int64_t>(bytes / round_up(job.chunk_bytes, kImageAlign), 1));
}

// Pieces are drained in the order in which they were filled, so waiting for the last one that is covered is enough.
Status Staging::take(std::int64_t bytes, Stream& filling, Piece& piece) {
  const std::int64_t begin = next_ + bytes <= half_.bytes ? next_ : 0, end = begin + bytes;
  const bool around = begin < next_;  // what lies between here and the end of the half is passed over
  const Event* last = nullptr;
  while (!in_use_.empty()) {
    Piece& oldest = in_use_.front();
    const bool passed_over = around && oldest.begin >= next_;
    const bool covered = oldest.begin < end && begin < oldest.end;
    if (!passed_over && !covered && !unused_.empty()) break;
    last = oldest.drained.get();
    unused_.push_back(std::move(oldest));
    in_use_.pop_front();
  }
  if (last) KVO_TRY(filling.wait(*last));
  piece = std::move(unused_.front());
  unused_.erase(unused_.begin());
  piece.begin = begin, piece.end = next_ = end;
  return {};
}

// Chunks from `first` on: their images in the ring, and the copies to or from their slots.
void Staging::plan_piece(const Job& job, std::size_t first, std::size_t count, std::byte* memory) {
  const bool store = job.pages.direction == Direction::store;
  images_.clear(), copies_.clear();
  for (std::size_t i = 0; i < count; ++i) {
    std::byte* image = memory + static_cast<std::int64_t>(i) * round_up(job.chunk_bytes, kImageAlign);
    std::byte* slot = job.slots[first + i];
    images_.push_back(image);
    for (std::int64_t done = 0, step; done < job.chunk_bytes; done += step) {
      step = std::min(job.chunk_bytes - done, job.cut_bytes - (slot + done - job.arena) % job.cut_bytes);
      copies_.push_back({store ? slot + done : image + done, store ? image + done : slot + done, step});
    }
  }
}

Status Staging::pass(const Job& job, const PageCopy& pages, Piece& piece, Stream& filling, Stream& draining) {
  const bool store = job.pages.direction == Direction::store;
  KVO_TRY(store ? filling.copy_pages(pages) : filling.copy(copies_, Direction::load));
  KVO_TRY(filling.record(*piece.filled));
  KVO_TRY(draining.wait(*piece.filled));
  KVO_TRY(store ? draining.copy(copies_, Direction::store) : draining.copy_pages(pages));
  return draining.record(*piece.drained);
}

}  // namespace kvo
