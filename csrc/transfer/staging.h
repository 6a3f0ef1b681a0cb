// Path `staged`: pages and ring by a few CTAs, ring and slots by the copy engine, piece by piece, so that both go on at
// once.
//
// Who owns what: a Staging is one direction's half of the ring and belongs to its lane, whose thread alone calls it.
// Pieces follow each other around the ring; where one begins to cover older ones, our stream (never the thread) waits
// for the event that says their content has left.
#pragma once
#include <deque>
#include <functional>
#include <memory>
#include <vector>

#include "base/page_copy.h"
#include "base/units.h"
#include "device/device.h"
#include "layout/extents.h"

namespace kvo {

struct StagingOptions {
  std::int64_t piece_bytes = 32 * MiB;
  std::int64_t small_piece_bytes = MiB;  // the first of a store, the last of a load
  int ctas = 64;
};

class Staging {
 public:
  // This direction's half of the ring.
  struct Half {
    std::shared_ptr<DeviceMemory> ring;
    std::byte* address;
    std::int64_t bytes;
  };
  static Result<std::unique_ptr<Staging>> create(Device& device, const StagingOptions& options, Half half,
                                                 std::int64_t largest_chunk_bytes);
  // Whether a chunk fits into a piece: where not, the group has no staged path.
  bool fits(std::int64_t chunk_bytes) const { return chunk_bytes <= piece_bytes_; }

  struct Job {
    PageCopy pages;                     // all but the images
    std::int64_t chunk_bytes;           // payload
    std::span<std::byte* const> slots;  // in the arena
    const std::byte* arena;             // slots are cut at multiples of cut_bytes from here
    std::int64_t cut_bytes;
  };
  // `page_stream` runs the kernels, `copy_stream` the copies; the first operation of each waits for what the lane has
  // put there. `make_room(cost)` bounds what lies on the device, in copies.
  Status run(const Job& job, Stream& page_stream, Stream& copy_stream, bool lane_is_busy,
             const std::function<Status(std::int64_t)>& make_room);

 private:
  struct Piece {
    std::int64_t begin = 0, end = 0;  // in the half
    std::unique_ptr<Event> filled, drained;
  };

  Staging(const StagingOptions& options, Half half) : options_(options), half_(std::move(half)) {}
  void cut(const Job& job, bool lane_is_busy);  // into counts_
  std::size_t chunks_of(const Job& job, std::int64_t bytes) const;
  Status take(std::int64_t bytes, Stream& filling, Piece& piece);
  void plan_piece(const Job& job, std::size_t first, std::size_t count, std::byte* memory);
  Status pass(const Job& job, const PageCopy& pages, Piece& piece, Stream& filling, Stream& draining);

  const StagingOptions options_;
  const Half half_;
  std::int64_t piece_bytes_ = 0;
  std::int64_t next_ = 0;      // where the next piece may begin
  std::deque<Piece> in_use_;   // oldest first; may have been drained long ago
  std::vector<Piece> unused_;  // their events

  // Scratch.
  std::vector<std::size_t> counts_;  // of each piece, its chunks
  std::vector<std::byte*> images_;
  std::vector<CopySpan> copies_;
};

}  // namespace kvo
