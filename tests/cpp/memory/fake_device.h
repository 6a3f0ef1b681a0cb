// A device that only pins: it records every call, can hold them at a gate, and can fail.
#pragma once
#include <atomic>
#include <condition_variable>
#include <map>
#include <mutex>
#include <new>
#include <set>
#include <thread>
#include <vector>

#include "device/device.h"

namespace kvo {

class FakeDevice : public Device {
 public:
  std::string name() const override { return "fake"; }
  bool is_cuda() const override { return true; }
  int numa_node() const override { return node; }
  Result<std::unique_ptr<Event>> make_event(bool) override { return Status(Code::unsupported, "fake"); }
  std::string identity() const override { return "fake"; }
  double link_gb_per_s() const override { return 0; }
  Result<std::unique_ptr<DeviceMemory>> allocate(std::int64_t) override { return Status(Code::unsupported, "fake"); }
  std::int64_t free_bytes() override { return 0; }
  Result<std::unique_ptr<Stream>> make_stream(Urgency) override { return Status(Code::unsupported, "fake"); }
  Status record(Event&, StreamHandle) override { return {}; }
  Status wait(StreamHandle, const Event&, Deadline) override { return {}; }
  EventState query(const Event&) override { return EventState::done; }
  double seconds_between(const Event&, const Event&) override { return 0; }

  Status pin(std::byte* address, std::int64_t bytes) override {
    std::unique_lock lock(mutex_);
    ++waiting_;
    changed_.notify_all();
    changed_.wait(lock, [&] { return permits_ > 0; });
    --waiting_;
    --permits_;
    if (throws) throw std::bad_alloc();
    if (entered_.count(std::this_thread::get_id()) == 0) return Status(Code::device, "enter_thread was not called");
    if (pins_.size() >= fail_after) return Status(Code::device, "cudaErrorMemoryAllocation");
    pins_[address] = bytes;
    order_.push_back(address);
    return {};
  }
  Status unpin(std::byte* address) override {
    std::lock_guard lock(mutex_);
    if (unpin_fails) return Status(Code::device, "unpin failed");
    return pins_.erase(address) == 1 ? Status() : Status(Code::device, "was not pinned");
  }
  Status enter_thread() override {
    std::lock_guard lock(mutex_);
    entered_.insert(std::this_thread::get_id());
    return {};
  }

  void close_gate(long permits) {
    std::lock_guard lock(mutex_);
    permits_ = permits;
  }
  void let_through(long permits) {
    std::lock_guard lock(mutex_);
    permits_ += permits;
    changed_.notify_all();
  }
  void wait_for_pin_at_gate() {
    std::unique_lock lock(mutex_);
    changed_.wait(lock, [&] { return waiting_ > 0 && permits_ == 0; });
  }
  std::map<std::byte*, std::int64_t> pins() const {
    std::lock_guard lock(mutex_);
    return pins_;
  }
  std::vector<std::byte*> order() const {
    std::lock_guard lock(mutex_);
    return order_;
  }

  int node = -1;
  std::size_t fail_after = SIZE_MAX;
  std::atomic<bool> throws{false}, unpin_fails{false};

 private:
  mutable std::mutex mutex_;
  std::condition_variable changed_;
  long permits_ = 1'000'000, waiting_ = 0;
  std::map<std::byte*, std::int64_t> pins_;
  std::vector<std::byte*> order_;
  std::set<std::thread::id> entered_;
};

}  // namespace kvo
