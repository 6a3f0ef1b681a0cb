// The best I/O queue there is, found by trying.
#pragma once
#include <memory>
#include <string>

#include "storage/io_queue.h"

namespace kvo {

struct OpenedQueue {
  std::unique_ptr<IoQueue> queue;
  std::string note;  // why it is not the best one
};

// `choice`: auto, io_uring or threads. By the thread that will own the queue.
Result<OpenedQueue> open_io_queue(const std::string& choice, const IoQueueOptions& options);

}  // namespace kvo
