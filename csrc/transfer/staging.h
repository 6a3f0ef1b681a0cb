// Path `staged`: pages and ring by a few CTAs, ring and slots by the copy engine, piece by piece, so that both go on at
// once.
//
// Who owns what: a Staging is one direction's half of the ring and belongs to its lane, whose thread alone calls it.
// A piece of the ring is reused only after the event that says its last content has left it; the waiting is done by our
// streams, never by the thread. Pieces start small and double: the link has work soon, and large copies later.
#pragma once
#include <functional>
#include <memory>
#include <vector>

#include "base/page_copy.h"
#include "base/units.h"
#include "device/device.h"
#include "layout/extents.h"

namespace kvo {

struct StagingOptions {
  std::int64_t piece_bytes = 16 * MiB;
  std::int64_t first_piece_bytes = MiB;
  int ctas = 32;
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
  Status run(const Job& job, Stream& page_stream, Stream& copy_stream,
             const std::function<Status(std::int64_t)>& make_room);

 private:
  struct Piece {
    std::byte* memory;
    std::unique_ptr<Event> filled, drained;
  };

  Staging(const StagingOptions& options, Half half) : options_(options), half_(std::move(half)) {}
  std::size_t plan_piece(const Job& job, std::size_t first, std::int64_t bytes, std::byte* memory);
  Status pass(const Job& job, const PageCopy& pages, Piece& piece, Stream& page_stream, Stream& copy_stream);

  const StagingOptions options_;
  const Half half_;
  std::int64_t piece_bytes_ = 0;
  std::vector<Piece> pieces_;
  std::size_t next_ = 0;

  // Scratch.
  std::vector<std::byte*> images_;
  std::vector<CopySpan> copies_;
};

}  // namespace kvo
