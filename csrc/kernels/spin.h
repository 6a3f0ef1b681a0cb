// A kernel that only takes time: holds a stream back in tests and benchmarks.
#pragma once
#include <cstdint>

#include "base/copy_span.h"
#include "base/status.h"

namespace kvo {

Status launch_spin(int ordinal, StreamHandle stream, std::int64_t nanoseconds);

}  // namespace kvo
