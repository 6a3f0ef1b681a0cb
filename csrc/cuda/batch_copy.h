// Many copies in one driver call where the driver has it (12.8 on), else one call each.
#pragma once
#include <cuda_runtime_api.h>

#include <span>

#include "base/copy_span.h"
#include "base/status.h"

namespace kvo::cuda {

// A batch call holds a lock of the driver for 0.5 us an entry (measured), and other threads that create events or
// record on the legacy stream wait for it: a model's too. So batches are small. That also keeps them far below the
// 50,000 entries at which drivers crashed; empty spans, another cause, are never passed on.
inline constexpr std::size_t kMaxBatch = 64;

bool has_batch_copy();  // the driver has it, from 12.8 on; fault point "batch_copy": it has not
Status copy_spans(std::span<const CopySpan> spans, Direction direction, cudaStream_t stream);

}  // namespace kvo::cuda
