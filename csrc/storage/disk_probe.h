// How a disk is best used: a short try on a slab that holds nothing yet. Depth saturates real drives, virtual ones are
// fastest with one large request at a time: no rule fits both.
#pragma once
#include <cstdint>
#include <span>
#include <string>

#include "storage/io_queue.h"
#include "storage/slab_header.h"

namespace kvo {

struct DiskProbeOptions {
  std::string io;
  IoQueueOptions queue;         // its memory is overwritten
  std::int64_t file_bytes = 0;  // behind the header, overwritten as well
  double seconds = 0.5;         // about
};

// Of those that are nearly as fast as the fastest the one with the least in flight: what waits inside the disk cannot
// be overtaken.
DiskTuning best_tuning(std::span<const DiskTuning> tried);

// What is usual and no speeds where the disk fails meanwhile, or the slab or the memory is too small to tell.
DiskTuning probe_disk(const DiskProbeOptions& options);

}  // namespace kvo
