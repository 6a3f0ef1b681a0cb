#include "storage/uring_queue.h"

#if __has_include(<linux/io_uring.h>)
#include <linux/io_uring.h>
#endif
#include <poll.h>
#include <sys/eventfd.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>

#include "base/fault.h"
#include "base/file.h"

namespace kvo {

#if defined(IORING_SETUP_DEFER_TASKRUN)

namespace {

constexpr std::uint64_t kWakeup = ~std::uint64_t{0};  // no operation has this number: their indexes are small

}  // namespace

Result<std::unique_ptr<IoQueue>> UringQueue::open(const IoQueueOptions& options) {
  if (fault::fires("uring_open")) return Status(Code::unsupported, "io_uring_setup: Operation not permitted");
  std::unique_ptr<UringQueue> queue(new UringQueue(options));
  queue->wakeup_ = UniqueFd(eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK));
  if (!queue->wakeup_) return file_error("make", "an eventfd", errno);
  auto ring = Uring::open(static_cast<unsigned>(queue->depth()) + 1);  // and one for wake()
  if (!ring.ok()) return ring.status();
  queue->ring_ = std::move(*ring);
  // Without either it works as well, a little slower.
  queue->files_registered_ = !options.files.empty() && queue->ring_->register_files(options.files).ok();
  const auto buffers = round_up(options.memory_bytes, kBufferBytes) / kBufferBytes;
  queue->buffers_wanted_ = buffers > 0 && queue->ring_->register_sparse_buffers(static_cast<unsigned>(buffers)).ok();
  queue->listen();
  return std::unique_ptr<IoQueue>(std::move(queue));
}

void UringQueue::wake() {
  const std::uint64_t one = 1;
  static_cast<void>(!write(wakeup_.get(), &one, sizeof one));  // full: it is awake
}

void UringQueue::listen() {
  io_uring_sqe* request = ring_->next();
  request->opcode = IORING_OP_POLL_ADD;
  request->fd = wakeup_.get();
  request->poll32_events = POLLIN;
  request->user_data = kWakeup;
}

// Registering pins memory, which a limit may forbid, and takes a while: one piece a call, and none after a failure.
std::int64_t UringQueue::memory_ready(std::int64_t ready_bytes) {
  const std::int64_t bytes = std::min(kBufferBytes, options_.memory_bytes - registered_bytes_);
  if (!buffers_wanted_ || bytes <= 0 || registered_bytes_ + bytes > ready_bytes) return registered_bytes_;
  const auto index = static_cast<unsigned>(registered_bytes_ / kBufferBytes);
  buffers_wanted_ = ring_->register_buffer(index, options_.memory + registered_bytes_, bytes).ok();
  if (buffers_wanted_) registered_bytes_ += bytes;
  return registered_bytes_;
}

int UringQueue::buffer_of(const IoRequest& part) const {
  const std::int64_t offset = part.memory - options_.memory;
  if (offset < 0 || offset + part.bytes > registered_bytes_) return -1;
  const std::int64_t index = offset / kBufferBytes;
  return (offset + part.bytes - 1) / kBufferBytes == index ? static_cast<int>(index) : -1;
}

void UringQueue::start(const IoRequest& part, std::uint64_t number) {
  io_uring_sqe* request = ring_->next();
  const int buffer = buffer_of(part);
  const bool reads = part.kind == IoKind::read;
  if (buffer >= 0) request->buf_index = static_cast<std::uint16_t>(buffer);
  request->opcode =
      buffer >= 0 ? (reads ? IORING_OP_READ_FIXED : IORING_OP_WRITE_FIXED) : (reads ? IORING_OP_READ : IORING_OP_WRITE);
  request->flags = files_registered_ ? IOSQE_FIXED_FILE : 0;
  request->fd = files_registered_ ? part.file : options_.files[part.file];
  request->addr = reinterpret_cast<std::uint64_t>(part.memory);
  request->len = static_cast<std::uint32_t>(std::min<std::int64_t>(part.bytes, GiB));  // the rest goes on from there
  request->off = static_cast<std::uint64_t>(part.offset);
  request->user_data = number;
}

Status UringQueue::pump(std::vector<Completion>& completions, Deadline deadline) {
  KVO_TRY(ring_->enter(deadline));
  std::uint64_t number = 0;
  for (std::int32_t result = 0; ring_->take(number, result);) {
    if (number != kWakeup) {
      completions.push_back({number, result});
      continue;
    }
    std::uint64_t count;
    static_cast<void>(!read(wakeup_.get(), &count, sizeof count));
    listen();
  }
  return {};
}

#else

Result<std::unique_ptr<IoQueue>> UringQueue::open(const IoQueueOptions&) { return Uring::open(1).status(); }
void UringQueue::wake() {}
void UringQueue::listen() {}
std::int64_t UringQueue::memory_ready(std::int64_t) { return registered_bytes_; }
int UringQueue::buffer_of(const IoRequest&) const { return -1; }
void UringQueue::start(const IoRequest&, std::uint64_t) {}
Status UringQueue::pump(std::vector<Completion>&, Deadline) { return Uring::open(1).status(); }

#endif

}  // namespace kvo
