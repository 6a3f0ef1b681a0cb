#include "transfer/event_pool.h"

#include <exception>

#include "base/brief_lock.h"
#include "base/fault.h"

namespace kvo {

Result<std::shared_ptr<EventPool>> EventPool::create(std::shared_ptr<Device> device, bool timed, std::int64_t count) {
  std::shared_ptr<EventPool> pool(new EventPool(std::move(device), timed), LeakInFork<EventPool>());
  for (std::int64_t i = 0; i < count; ++i) {
    auto event = pool->device_->make_event(timed);
    if (!event.ok()) return event.status();
    pool->free_.push_back(std::move(*event));
  }
  return pool;
}

Result<std::shared_ptr<Event>> EventPool::take() {
  if (fault::fires("event")) return Status(Code::device, "making an event failed (injected)");
  std::unique_ptr<Event> event;
  {
    const auto lock = lock_briefly(mutex_);
    if (!free_.empty()) event = std::move(free_.back()), free_.pop_back();
  }
  if (!event) {
    auto made = device_->make_event(timed_);
    if (!made.ok()) return made.status();
    event = std::move(*made);
  }
  return std::shared_ptr<Event>(event.release(),
                                [pool = shared_from_this()](Event* returned) { pool->put_back(returned); });
}

void EventPool::put_back(Event* event) noexcept {
  if (owner_.forked()) return;
  std::unique_ptr<Event> returned(event);
  try {
    const auto lock = lock_briefly(mutex_);
    free_.push_back(std::move(returned));
  } catch (const std::exception&) {  // no memory to keep it: it is destroyed
  }
}

}  // namespace kvo
