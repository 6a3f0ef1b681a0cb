#include "storage/thread_queue.h"

#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <string>
#include <system_error>

namespace kvo {
namespace {

std::int64_t carry_out(const IoRequest& part, int file) {
  const ssize_t result = part.kind == IoKind::read ? pread(file, part.memory, part.bytes, part.offset)
                                                   : pwrite(file, part.memory, part.bytes, part.offset);
  return result < 0 ? -errno : result;
}

}  // namespace

Result<std::unique_ptr<IoQueue>> ThreadQueue::open(const IoQueueOptions& options) {
  std::unique_ptr<ThreadQueue> queue(new ThreadQueue(options));
  queue->ended_.reserve(queue->depth());
  const int threads = std::min(queue->depth(), kMostThreads);
  try {
    for (int i = 0; i < threads; ++i) queue->threads_.emplace_back([raw = queue.get()] { raw->run(); });
  } catch (const std::system_error& error) {
    // Fewer do as well.
    if (queue->threads_.empty()) return Status(Code::unsupported, std::string("no threads for I/O: ") + error.what());
  }
  return std::unique_ptr<IoQueue>(std::move(queue));
}

ThreadQueue::~ThreadQueue() {
  {
    std::lock_guard lock(mutex_);
    stop_ = true;
    parts_.clear();
  }
  work_.notify_all();
  for (std::thread& thread : threads_) thread.join();
}

void ThreadQueue::wake() {
  std::lock_guard lock(mutex_);
  woken_ = true;
  changed_.notify_all();
}

void ThreadQueue::start(const IoRequest& part, std::uint64_t number) {
  std::lock_guard lock(mutex_);
  parts_.push_back({part, number});
  work_.notify_one();
}

Status ThreadQueue::pump(std::vector<Completion>& completions, Deadline deadline) {
  std::unique_lock lock(mutex_);
  changed_.wait_until(lock, deadline, [&] { return !ended_.empty() || woken_; });
  completions.insert(completions.end(), ended_.begin(), ended_.end());
  ended_.clear();
  woken_ = false;
  return {};
}

void ThreadQueue::run() noexcept {
  std::unique_lock lock(mutex_);
  while (true) {
    work_.wait(lock, [&] { return stop_ || !parts_.empty(); });
    if (stop_) return;
    const Part part = parts_.front();
    parts_.pop_front();
    lock.unlock();
    const std::int64_t result = carry_out(part.request, files_[part.request.file]);
    lock.lock();
    ended_.push_back({part.number, result});  // room for all that can be in flight was reserved
    changed_.notify_all();
  }
}

}  // namespace kvo
