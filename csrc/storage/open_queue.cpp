#include "storage/open_queue.h"

#include <utility>

#include "storage/thread_queue.h"
#include "storage/uring_queue.h"

namespace kvo {

Result<OpenedQueue> open_io_queue(const std::string& choice, const IoQueueOptions& options) {
  if (choice != "auto" && choice != "io_uring" && choice != "threads") {
    return Status(Code::invalid, "disk_io is \"" + choice + "\": choose auto, io_uring or threads");
  }
  std::string note;
  if (choice != "threads") {
    auto queue = UringQueue::open(options);
    if (queue.ok()) return OpenedQueue{std::move(*queue), ""};
    if (choice == "io_uring") return queue.status();
    note = "threads do the I/O, io_uring is refused: " + queue.status().message();
  }
  auto queue = ThreadQueue::open(options);
  if (!queue.ok()) return queue.status();
  return OpenedQueue{std::move(*queue), std::move(note)};
}

}  // namespace kvo
