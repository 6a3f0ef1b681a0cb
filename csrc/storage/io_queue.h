// Reads and writes that are carried out at the same time: one interface over io_uring, threads and plain memory.
//
// What all of them share is here: completions are matched by number and generation, so that none is ever taken for that
// of another request; what came short or was interrupted goes on from an aligned place. One thread owns a queue and
// makes all calls but wake(). The memory of a request belongs to the queue until its result was reaped.
#pragma once
#include <chrono>
#include <cstddef>
#include <cstdint>
#include <span>
#include <vector>

#include "base/status.h"

namespace kvo {

inline constexpr std::int64_t kDiskAlign = 4096;  // of offsets, sizes and memory

enum class IoKind : std::uint8_t { read, write };

struct IoRequest {
  IoKind kind;
  int file;  // index among the queue's files
  std::int64_t offset;
  std::byte* memory;
  std::int64_t bytes;
  std::uint64_t tag;  // comes back with the result
};

struct IoResult {
  std::uint64_t tag;
  std::int64_t bytes;  // fewer than asked for with error 0: the file ends there, or nothing moves on
  int error;           // errno
};

struct IoQueueOptions {
  std::vector<int> files;       // open for as long as the queue lives
  int depth = 8;                // requests at a time
  std::byte* memory = nullptr;  // where most requests will read and write; it may be registered with the kernel
  std::int64_t memory_bytes = 0;
};

class IoQueue {
 public:
  using Deadline = std::chrono::steady_clock::time_point;

  virtual ~IoQueue() = default;  // whoever reads or writes this memory has ended
  IoQueue(const IoQueue&) = delete;

  virtual const char* name() const = 0;
  virtual void wake() = 0;  // any thread: reap() returns
  // The first bytes of the options' memory are there for good: they may be registered. Says how many are.
  virtual std::int64_t memory_ready(std::int64_t) { return 0; }

  int depth() const { return static_cast<int>(operations_.size()); }
  int in_flight() const { return depth() - room(); }
  int room() const { return static_cast<int>(unused_.size()); }
  std::int64_t strays() const { return strays_; }  // completions of nothing
  // Not ok: nothing that is in flight will ever be reaped, and its memory must never be used again.
  const Status& broken() const { return broken_; }

  void submit(std::span<const IoRequest> requests);  // at most room()
  // Adds what has ended; waits for the first until the deadline or a wake().
  void reap(std::vector<IoResult>& results, Deadline deadline);

 protected:
  struct Completion {
    std::uint64_t number;
    std::int64_t result;  // bytes, or -errno
  };

  explicit IoQueue(const IoQueueOptions& options);
  virtual void start(const IoRequest& part, std::uint64_t number) = 0;
  // Hands over what was started, waits for a completion, wake() or the deadline, and adds what has ended.
  virtual Status pump(std::vector<Completion>& completions, Deadline deadline) = 0;

 private:
  struct Operation {
    IoRequest request;
    std::int64_t done_bytes;
    std::uint32_t generation;
    int interrupted, stuck;
    bool active;
  };

  void begin(Operation& operation);
  void settle(const Completion& completion, std::vector<IoResult>& results);
  bool again(Operation& operation, std::int64_t result);
  void end(Operation& operation, int error, std::vector<IoResult>& results);

  std::vector<Operation> operations_;
  std::vector<std::uint32_t> unused_;
  std::vector<Completion> completions_, made_up_;  // made_up_: those of faults
  std::int64_t strays_ = 0;
  Status broken_;
};

}  // namespace kvo
