// A device as the mover sees it: memory to copy from and to, streams that run in order, events that order them.
// Two kinds: cuda_device (a GPU) and host_device (plain memory stands in for the GPU, a thread for a stream).
// Everything here may be called from any thread; a Stream of ours is used by one thread at a time.
#pragma once
#include <chrono>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <span>
#include <string>

#include "base/copy_span.h"
#include "base/page_copy.h"
#include "base/status.h"

namespace kvo {

using Deadline = std::chrono::steady_clock::time_point;

enum class EventState { pending, done, failed };

// A point in a stream. Reusable: recording again moves the point. Never recorded counts as done.
class Event {
 public:
  virtual ~Event() = default;
};

// One of our own streams.
class Stream {
 public:
  virtual ~Stream() = default;
  virtual Status wait(const Event& event) = 0;
  virtual Status record(Event& event) = 0;
  // Enqueues copies; they are unordered among themselves. Spans are read before return.
  virtual Status copy(std::span<const CopySpan> spans, Direction direction) = 0;
  // Enqueues pages of whole chunks, in as few launches as it takes. Ids and addresses are read before return, the table
  // of pages while it runs.
  virtual Status copy_pages(const PageCopy& copy) = 0;
};

// Memory of the device, freed with the object. The caller has made sure that nothing uses it.
class DeviceMemory {
 public:
  virtual ~DeviceMemory() = default;
  virtual std::byte* address() const = 0;
};

enum class Urgency { normal, high };  // high: our few CTAs go ahead of a model's that wait for the same SMs

class Device {
 public:
  virtual ~Device() = default;
  virtual std::string name() const = 0;  // "cuda:0", "host"
  virtual bool is_cuda() const = 0;
  virtual int numa_node() const = 0;  // -1: unknown or one node
  // What decides how fast the paths are: GPU, driver, link.
  virtual std::string identity() const = 0;
  virtual double link_gb_per_s() const = 0;  // one way, as the link's standard has it; 0: unknown

  virtual Result<std::unique_ptr<Event>> make_event(bool timed) = 0;  // timed: for seconds_between
  virtual Result<std::unique_ptr<Stream>> make_stream(Urgency urgency) = 0;
  virtual Result<std::unique_ptr<DeviceMemory>> allocate(std::int64_t bytes) = 0;
  virtual std::int64_t free_bytes() = 0;

  // On the caller's stream: record a point, or make later work wait for one. A caller's stream that is being
  // captured into a graph is refused.
  virtual Status record(Event& event, StreamHandle caller) = 0;
  virtual Status wait(StreamHandle caller, const Event& event, Deadline deadline) = 0;
  virtual EventState query(const Event& event) = 0;
  virtual double seconds_between(const Event& start, const Event& end) = 0;  // both done

  // Page-lock [address, address + bytes) for DMA. No-ops on the host device. A failure leaves no pending CUDA error.
  virtual Status pin(std::byte* address, std::int64_t bytes) = 0;
  virtual Status unpin(std::byte* address) = 0;
  // First call of each thread of ours: current device, relaxed stream-capture mode.
  virtual Status enter_thread() = 0;
};

std::shared_ptr<Device> make_host_device();
// unsupported: built without CUDA; device: no driver, no such GPU.
Result<std::shared_ptr<Device>> make_cuda_device(int ordinal);

}  // namespace kvo
