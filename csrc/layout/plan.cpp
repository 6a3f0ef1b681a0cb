#include <algorithm>
#include <limits>

#include "base/units.h"
#include "layout/geometry.h"

namespace kvo {
namespace {

// Takes spans in, puts them out cut at multiples of cut_bytes. Remembers the piece it is in, so that a division is
// needed only when the piece changes.
class Cutter {
 public:
  Cutter(std::int64_t cut_bytes, std::vector<Span>& out) : cut_bytes_(cut_bytes), out_(out) {
    if (cut_bytes <= 0) end_ = std::numeric_limits<std::int64_t>::max();
  }

  void put(const Span& span) {
    if (span.host >= begin_ && span.host + span.bytes <= end_) {
      out_.push_back(span);
    } else {
      put_across(span);
    }
  }

 private:
  void put_across(Span span) {
    while (span.bytes > 0) {
      begin_ = round_down(span.host, cut_bytes_);
      end_ = begin_ + cut_bytes_;
      const std::int64_t bytes = std::min(span.bytes, end_ - span.host);
      out_.push_back({span.device, span.host, bytes});
      span = {span.device + static_cast<std::uintptr_t>(bytes), span.host + bytes, span.bytes - bytes};
    }
  }

  const std::int64_t cut_bytes_;
  std::int64_t begin_ = 0, end_ = 0;
  std::vector<Span>& out_;
};

}  // namespace

void plan_spans(const GroupGeometry& group, const ChunkBatch& batch, std::int64_t cut_bytes, std::vector<Span>& out) {
  const std::int64_t per_chunk = group.blocks_per_chunk;
  const std::int64_t* blocks = batch.blocks.data();
  std::int64_t skip = batch.skip_blocks;
  Cutter cutter(cut_bytes, out);
  Span span{0, 0, 0};
  for (const std::int64_t slot_offset : batch.slot_offsets) {
    std::int64_t page_host = slot_offset;
    for (const PageRun& page : group.pages) {
      const auto stride = static_cast<std::uintptr_t>(page.block_stride);
      std::int64_t host = page_host + skip * page.bytes;
      for (std::int64_t j = skip; j < per_chunk; ++j, host += page.bytes) {
        const std::uintptr_t device = page.address + static_cast<std::uintptr_t>(blocks[j]) * stride;
        // Only within a page run: the next one may be another allocation that lies behind this one by chance.
        if (j > skip && device == span.device + static_cast<std::uintptr_t>(span.bytes) &&
            host == span.host + span.bytes) {
          span.bytes += page.bytes;
          continue;
        }
        if (span.bytes > 0) cutter.put(span);
        span = {device, host, page.bytes};
      }
      page_host += per_chunk * page.bytes;
    }
    blocks += per_chunk;
    skip = 0;
  }
  if (span.bytes > 0) cutter.put(span);
}

}  // namespace kvo
