// Events made ahead and used again. Creating one takes the driver's lock, for which the caller would wait behind the
// copies that a lane is enqueuing (milliseconds, measured); recording one does not.
#pragma once
#include <memory>
#include <mutex>
#include <vector>

#include "base/owner_process.h"
#include "device/device.h"

namespace kvo {

class EventPool : public std::enable_shared_from_this<EventPool> {
 public:
  static Result<std::shared_ptr<EventPool>> create(std::shared_ptr<Device> device, bool timed, std::int64_t count);
  // An event that goes back to the pool when its last holder lets go. Makes one when the pool is empty.
  Result<std::shared_ptr<Event>> take();

 private:
  EventPool(std::shared_ptr<Device> device, bool timed) : device_(std::move(device)), timed_(timed) {}
  void put_back(Event* event) noexcept;

  const OwnerProcess owner_;
  const std::shared_ptr<Device> device_;
  const bool timed_;
  std::mutex mutex_;
  std::vector<std::unique_ptr<Event>> free_;
};

}  // namespace kvo
