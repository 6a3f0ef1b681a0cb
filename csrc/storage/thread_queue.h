// IoQueue by pread and pwrite on threads of its own: what works everywhere.
#pragma once
#include <condition_variable>
#include <deque>
#include <memory>
#include <mutex>
#include <thread>

#include "storage/io_queue.h"

namespace kvo {

class ThreadQueue final : public IoQueue {
 public:
  static constexpr int kMostThreads = 32;

  static Result<std::unique_ptr<IoQueue>> open(const IoQueueOptions& options);
  ~ThreadQueue() override;

  const char* name() const override { return "threads"; }
  void wake() override;

 private:
  struct Part {
    IoRequest request;
    std::uint64_t number;
  };

  explicit ThreadQueue(const IoQueueOptions& options) : IoQueue(options), files_(options.files) {}
  void start(const IoRequest& part, std::uint64_t number) override;
  Status pump(std::vector<Completion>& completions, Deadline deadline) override;
  void run() noexcept;

  const std::vector<int> files_;
  std::mutex mutex_;  // of all that follows
  std::condition_variable work_, changed_;
  std::deque<Part> parts_;
  std::vector<Completion> ended_;
  bool woken_ = false, stop_ = false;
  std::vector<std::thread> threads_;
};

}  // namespace kvo
