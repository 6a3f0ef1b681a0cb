// Copies without anything of ours around them: what benchmarks compare with, and the ceiling of a machine.
#pragma once
#include <vector>

#include "device/device.h"

namespace kvo {

enum class RawWay { loop, batch };  // a call a copy; batch calls

// Seconds of each of `repeats` runs of the same copies, from the first call until the last byte is there. One more run
// before them is not counted. Takes a stream and an event of its own.
Result<std::vector<double>> time_raw_copies(Device& device, Direction direction, std::span<const CopySpan> spans,
                                            RawWay way, int repeats);

struct Rates {
  double store_gb_per_s = 0, load_gb_per_s = 0;
};

// Large contiguous copies between device memory and pinned host memory, the median of nine. `both`: two at once.
Result<Rates> measure_ceiling(std::shared_ptr<Device> device, std::int64_t bytes, bool both);

}  // namespace kvo
