#include "device/host_device.h"

#include <algorithm>
#include <cstring>
#include <system_error>
#include <vector>

#include "base/fault.h"

namespace kvo {

std::uint64_t HostEvent::State::begin_record() {
  std::lock_guard lock(mutex);
  return ++recorded;
}

void HostEvent::State::reach(std::uint64_t ticket) {
  std::lock_guard lock(mutex);
  reached = std::max(reached, ticket);
  seconds = std::chrono::duration<double>(std::chrono::steady_clock::now().time_since_epoch()).count();
  changed.notify_all();
}

bool HostEvent::State::wait(std::uint64_t ticket, Deadline deadline) {
  std::unique_lock lock(mutex);
  return changed.wait_until(lock, deadline, [&] { return reached >= ticket; });
}

namespace {

using StatePtr = std::shared_ptr<HostEvent::State>;

const StatePtr& state_of(const Event& event) { return static_cast<const HostEvent&>(event).state; }

// The point as it stands now: a later record does not move what a waiter waits for.
std::uint64_t ticket_of(const StatePtr& state) {
  std::lock_guard lock(state->mutex);
  return state->recorded;
}

}  // namespace

HostStream::HostStream() : thread_([this] { run(); }) {}

HostStream::~HostStream() {
  {
    std::lock_guard lock(mutex_);
    stopping_ = true;
  }
  changed_.notify_all();
  thread_.join();
}

void HostStream::run() {
  std::unique_lock lock(mutex_);
  for (;;) {
    changed_.wait(lock, [&] { return stopping_ || !tasks_.empty(); });
    if (tasks_.empty()) return;
    auto task = std::move(tasks_.front());
    tasks_.pop_front();
    lock.unlock();
    task();
    task = nullptr;
    lock.lock();
  }
}

void HostStream::enqueue(std::function<void()> task) {
  {
    std::lock_guard lock(mutex_);
    tasks_.push_back(std::move(task));
  }
  changed_.notify_all();
}

// A stream has no deadline of its own, as on a GPU: the bound is on whoever waits for it.
Status HostStream::wait(const Event& event) {
  enqueue([state = state_of(event), ticket = ticket_of(state_of(event))] { state->wait(ticket, Deadline::max()); });
  return {};
}

Status HostStream::record(Event& event) {
  enqueue([state = state_of(event), ticket = state_of(event)->begin_record()] { state->reach(ticket); });
  return {};
}

Status HostStream::copy(std::span<const CopySpan> spans, Direction) {
  enqueue([list = std::vector<CopySpan>(spans.begin(), spans.end())] {
    if (fault::fires("copy_delay")) std::this_thread::sleep_for(std::chrono::milliseconds(200));
    for (const CopySpan& span : list) std::memcpy(span.dst, span.src, span.bytes);
  });
  return {};
}

Status HostStream::copy_pages(const PageCopy& copy) {
  enqueue([copy, blocks = std::vector<std::uint32_t>(copy.blocks.begin(), copy.blocks.end()),
           images = std::vector<std::byte*>(copy.images.begin(), copy.images.end())] {
    if (fault::fires("copy_delay")) std::this_thread::sleep_for(std::chrono::milliseconds(200));
    const bool store = copy.direction == Direction::store;
    const auto per_chunk = static_cast<std::size_t>(copy.blocks_per_chunk);
    for (std::size_t i = copy.skip_blocks; i < blocks.size(); ++i) {
      for (const PageEntry& page : std::span(copy.pages, copy.page_count)) {
        auto* device = reinterpret_cast<std::byte*>(page.address) + blocks[i] * page.block_stride;
        std::byte* image = images[i / per_chunk] + page.chunk_offset + i % per_chunk * page.bytes;
        std::memcpy(store ? image : device, store ? device : image, page.bytes);
      }
    }
  });
  return {};
}

void HostStream::delay(double seconds) {
  enqueue([seconds] { std::this_thread::sleep_for(std::chrono::duration<double>(seconds)); });
}

void HostStream::fill(std::byte* address, std::int64_t bytes, std::uint8_t value) {
  enqueue([=] { std::memset(address, value, bytes); });
}

Status HostStream::synchronize() {
  KVO_TRY(owner_.check("this HostStream"));
  HostEvent event;
  (void)record(event);
  event.state->wait(ticket_of(event.state), Deadline::max());
  return {};
}

namespace {

class HostMemory : public DeviceMemory {
 public:
  explicit HostMemory(std::int64_t bytes) : memory_(std::make_unique_for_overwrite<std::byte[]>(bytes)) {}
  std::byte* address() const override { return memory_.get(); }

 private:
  std::unique_ptr<std::byte[]> memory_;
};

class HostDevice : public Device {
 public:
  std::string name() const override { return "host"; }
  std::string identity() const override { return "host"; }
  double link_gb_per_s() const override { return 0; }
  bool is_cuda() const override { return false; }
  int numa_node() const override { return -1; }

  Result<std::unique_ptr<Event>> make_event(bool) override {
    return std::unique_ptr<Event>(std::make_unique<HostEvent>());
  }
  Result<std::unique_ptr<DeviceMemory>> allocate(std::int64_t bytes) override try {
    return std::unique_ptr<DeviceMemory>(std::make_unique<HostMemory>(bytes));
  } catch (const std::bad_alloc&) {
    return Status(Code::memory, "no memory for " + std::to_string(bytes) + " bytes");
  }
  std::int64_t free_bytes() override { return INT64_MAX; }
  Result<std::unique_ptr<Stream>> make_stream(Urgency) override try {
    return std::unique_ptr<Stream>(std::make_unique<HostStream>());
  } catch (const std::system_error& error) {
    return Status(Code::unsupported,
                  std::string("cannot start a thread for a stream (see ulimit -u): ") + error.what());
  }

  // Handle 0: the calling thread is the stream, so all before is done and all after waits here.
  Status record(Event& event, StreamHandle caller) override {
    if (caller != 0) return reinterpret_cast<HostStream*>(caller)->record(event);
    state_of(event)->reach(state_of(event)->begin_record());
    return {};
  }
  Status wait(StreamHandle caller, const Event& event, Deadline deadline) override {
    if (caller != 0) return reinterpret_cast<HostStream*>(caller)->wait(event);
    if (state_of(event)->wait(ticket_of(state_of(event)), deadline)) return {};
    return Status(Code::timeout, "the copy did not finish in time for the calling thread");
  }
  EventState query(const Event& event) override {
    std::lock_guard lock(state_of(event)->mutex);
    return state_of(event)->reached == state_of(event)->recorded ? EventState::done : EventState::pending;
  }
  double seconds_between(const Event& start, const Event& end) override {
    return state_of(end)->seconds - state_of(start)->seconds;
  }
  Status pin(std::byte*, std::int64_t) override { return {}; }
  Status unpin(std::byte*) override { return {}; }
  Status enter_thread() override { return {}; }
};

}  // namespace

std::shared_ptr<Device> make_host_device() { return std::make_shared<HostDevice>(); }

}  // namespace kvo
