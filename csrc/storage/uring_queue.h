// IoQueue over io_uring. Memory is registered piece by piece as it becomes ready, so that the kernel need not pin and
// look up its pages for every request; where a limit forbids that, requests go without.
#pragma once
#include <atomic>
#include <memory>

#include "base/units.h"
#include "storage/io_queue.h"
#include "storage/uring.h"

namespace kvo {

class UringQueue final : public IoQueue {
 public:
  static constexpr std::int64_t kBufferBytes = GiB;  // the kernel takes no larger ones

  // By the thread that will own the queue.
  static Result<std::unique_ptr<IoQueue>> open(const IoQueueOptions& options);
  ~UringQueue() override = default;  // nothing may be in flight: see IoQueue::broken()

  const char* name() const override { return "io_uring"; }
  void wake() override;
  std::int64_t memory_ready(std::int64_t ready_bytes) override;

 private:
  explicit UringQueue(const IoQueueOptions& options) : IoQueue(options), options_(options) {}
  void start(const IoRequest& part, std::uint64_t number) override;
  Status pump(std::vector<Completion>& completions, Deadline deadline) override;
  void listen();
  int buffer_of(const IoRequest& part) const;  // -1: none

  const IoQueueOptions options_;
  UniqueFd wakeup_;
  std::unique_ptr<Uring> ring_;  // goes before the descriptors that it uses
  bool files_registered_ = false, buffers_wanted_ = false;
  std::int64_t registered_bytes_ = 0;  // of the memory, from its start on
};

}  // namespace kvo
