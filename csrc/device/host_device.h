// Plain memory stands in for the GPU and a thread for a stream: same semantics, no driver. A public mode.
#pragma once
#include <condition_variable>
#include <deque>
#include <functional>
#include <mutex>
#include <thread>

#include "base/owner_process.h"
#include "device/device.h"

namespace kvo {

// `recorded` counts the records made, `reached` is the newest one its stream has passed: done when they are equal.
// Streams hold the state, not the event, so an event may be destroyed while a stream still has to pass it.
class HostEvent : public Event {
 public:
  struct State {
    std::mutex mutex;
    std::condition_variable changed;
    std::uint64_t recorded = 0, reached = 0;
    double seconds = 0;  // steady clock, when `reached` last moved

    std::uint64_t begin_record();
    void reach(std::uint64_t ticket);
    bool wait(std::uint64_t ticket, Deadline deadline);
  };
  const std::shared_ptr<State> state = std::make_shared<State>();
};

// A thread that runs tasks in order: what a CUDA stream is on a GPU. The destructor finishes what is queued.
class HostStream : public Stream {
 public:
  HostStream();
  ~HostStream() override;

  Status wait(const Event& event) override;
  Status record(Event& event) override;
  Status copy(std::span<const CopySpan> spans, Direction direction) override;
  Status copy_pages(const PageCopy& copy) override;

  // Stand-ins for kernels, for tests and demos.
  void delay(double seconds);
  void fill(std::byte* address, std::int64_t bytes, std::uint8_t value);
  Status synchronize();
  StreamHandle handle() const { return reinterpret_cast<StreamHandle>(this); }

 private:
  void enqueue(std::function<void()> task);
  void run();

  std::mutex mutex_;
  std::condition_variable changed_;
  std::deque<std::function<void()>> tasks_;
  bool stopping_ = false;
  OwnerProcess owner_;
  std::thread thread_;  // last: starts when all else exists
};

}  // namespace kvo
