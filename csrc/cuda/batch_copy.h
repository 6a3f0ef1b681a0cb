// Many copies in one driver call where the driver has it (12.8 on), else one call each.
#pragma once
#include <cuda_runtime_api.h>

#include <span>

#include "base/copy_span.h"
#include "base/status.h"

namespace kvo::cuda {

// Drivers crashed or hung above 50,000 descriptors and at zero-length entries: batches stay far below, empty spans are
// never passed on.
inline constexpr std::size_t kMaxBatch = 4096;

bool has_batch_copy();
Status copy_spans(std::span<const CopySpan> spans, Direction direction, cudaStream_t stream);

}  // namespace kvo::cuda
