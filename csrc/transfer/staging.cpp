#include "transfer/staging.h"

#include <algorithm>

#include "base/fault.h"

namespace kvo {

namespace {

constexpr std::int64_t kImageAlign = 256;
constexpr std::int64_t kLeastPieces = 2;
constexpr std::int64_t kPiecesOfTransfer = 8;  // a small transfer is cut too, or its two halves would not overlap
constexpr std::int64_t kPieceCost = 16;        // of a launch, waits and events, in copies

}  // namespace

Result<std::unique_ptr<Staging>> Staging::create(Device& device, const StagingOptions& options, Half half,
                                                 std::int64_t largest_chunk_bytes) {
  const std::int64_t chunk = round_up(largest_chunk_bytes, kImageAlign), most = half.bytes / kLeastPieces;
  std::int64_t piece_bytes = std::min(options.piece_bytes, most);
  if (chunk > piece_bytes && chunk <= most) piece_bytes = chunk;
  piece_bytes = round_down(piece_bytes, kImageAlign);
  std::unique_ptr<Staging> staging(new Staging(options, std::move(half)));
  staging->piece_bytes_ = piece_bytes;
  for (std::int64_t start = 0; start + piece_bytes <= staging->half_.bytes; start += piece_bytes) {
    auto filled = device.make_event(/*timed=*/false), drained = device.make_event(/*timed=*/false);
    if (!filled.ok() || !drained.ok()) return filled.ok() ? drained.status() : filled.status();
    staging->pieces_.push_back({staging->half_.address + start, std::move(*filled), std::move(*drained)});
  }
  return staging;
}

Status Staging::run(const Job& job, Stream& page_stream, Stream& copy_stream,
                    const std::function<Status(std::int64_t)>& make_room) {
  const auto chunks = static_cast<std::int64_t>(job.slots.size());
  const std::int64_t most = std::clamp(chunks * job.chunk_bytes / kPiecesOfTransfer, options_.first_piece_bytes,
                                       std::max(piece_bytes_, options_.first_piece_bytes));
  std::int64_t bytes = options_.first_piece_bytes;
  for (std::size_t first = 0; first < job.slots.size(); bytes = std::min(2 * bytes, most)) {
    Piece& piece = pieces_[next_];
    const std::size_t count = plan_piece(job, first, bytes, piece.memory);
    KVO_TRY(make_room(kPieceCost + static_cast<std::int64_t>(copies_.size())));
    if (fault::fires("copy")) return Status(Code::device, "copying a piece failed (injected)");
    PageCopy pages = job.pages;
    pages.most_ctas = options_.ctas;
    pages.images = images_;
    pages.blocks = job.pages.blocks.subspan(first * pages.blocks_per_chunk, count * pages.blocks_per_chunk);
    next_ = (next_ + 1) % pieces_.size();
    KVO_TRY(pass(job, pages, piece, page_stream, copy_stream));
    first += count;
  }
  return {};
}

// Chunks from `first` on that make up about `bytes`: their images in the ring and the copies to or from their slots.
std::size_t Staging::plan_piece(const Job& job, std::size_t first, std::int64_t bytes, std::byte* memory) {
  const std::int64_t stride = round_up(job.chunk_bytes, kImageAlign);
  const auto wanted = static_cast<std::size_t>(std::max<std::int64_t>(std::min(bytes, piece_bytes_) / stride, 1));
  const std::size_t count = std::min(wanted, job.slots.size() - first);
  images_.clear(), copies_.clear();
  for (std::size_t i = 0; i < count; ++i) {
    std::byte* image = memory + static_cast<std::int64_t>(i) * stride;
    std::byte* slot = job.slots[first + i];
    images_.push_back(image);
    for (std::int64_t done = 0, step; done < job.chunk_bytes; done += step) {
      const std::int64_t to_cut = job.cut_bytes - (slot + done - job.arena) % job.cut_bytes;
      step = std::min(job.chunk_bytes - done, to_cut);
      const bool store = job.pages.direction == Direction::store;
      copies_.push_back({store ? slot + done : image + done, store ? image + done : slot + done, step});
    }
  }
  return count;
}

Status Staging::pass(const Job& job, const PageCopy& pages, Piece& piece, Stream& page_stream, Stream& copy_stream) {
  const bool store = job.pages.direction == Direction::store;
  Stream& filling = store ? page_stream : copy_stream;
  Stream& draining = store ? copy_stream : page_stream;
  KVO_TRY(filling.wait(*piece.drained));
  KVO_TRY(store ? page_stream.copy_pages(pages) : copy_stream.copy(copies_, Direction::load));
  KVO_TRY(filling.record(*piece.filled));
  KVO_TRY(draining.wait(*piece.filled));
  KVO_TRY(store ? copy_stream.copy(copies_, Direction::store) : page_stream.copy_pages(pages));
  return draining.record(*piece.drained);
}

}  // namespace kvo
