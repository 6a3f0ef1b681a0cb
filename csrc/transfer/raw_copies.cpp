#include "transfer/raw_copies.h"

#include <algorithm>
#include <cstring>
#include <thread>

#include "base/mapped_region.h"

namespace kvo {

namespace {

constexpr int kRepeats = 9;
constexpr std::int64_t kHugePageBytes = 2 << 20;
using Clock = std::chrono::steady_clock;

double seconds_since(Clock::time_point start) { return std::chrono::duration<double>(Clock::now() - start).count(); }

Status copy(Stream& stream, Direction direction, std::span<const CopySpan> spans, RawWay way) {
  if (way == RawWay::batch) return stream.copy(spans, direction);
  for (const CopySpan& span : spans) KVO_TRY(stream.copy(std::span(&span, 1), direction));
  return {};
}

Status finish(Device& device, Stream& stream, Event& event) {
  KVO_TRY(stream.record(event));
  EventState state = EventState::pending;
  while ((state = device.query(event)) == EventState::pending) std::this_thread::yield();
  return state == EventState::done ? Status() : Status(Code::device, "the device reported an error while it copied");
}

double median(std::vector<double> samples) {
  std::nth_element(samples.begin(), samples.begin() + samples.size() / 2, samples.end());
  return samples[samples.size() / 2];
}

// Device memory and host memory of one size, pinned in one piece.
class Buffers {
 public:
  static Result<std::unique_ptr<Buffers>> create(Device& device, std::int64_t bytes) {
    auto host = MappedRegion::reserve(bytes, kHugePageBytes);
    if (!host.ok()) return host.status();
    std::memset(host->base(), 1, bytes);
    auto memory = device.allocate(bytes);
    if (!memory.ok()) return memory.status();
    KVO_TRY(device.pin(host->base(), bytes));
    return std::unique_ptr<Buffers>(new Buffers(device, bytes, std::move(*memory), std::move(*host)));
  }
  ~Buffers() { (void)device_.unpin(host_.base()); }

  CopySpan span(Direction direction) const {
    const bool store = direction == Direction::store;
    return {store ? host_.base() : memory_->address(), store ? memory_->address() : host_.base(), bytes_};
  }

 private:
  Buffers(Device& device, std::int64_t bytes, std::unique_ptr<DeviceMemory> memory, MappedRegion host)
      : device_(device), bytes_(bytes), memory_(std::move(memory)), host_(std::move(host)) {}

  Device& device_;
  const std::int64_t bytes_;
  const std::unique_ptr<DeviceMemory> memory_;
  const MappedRegion host_;
};

}  // namespace

Result<std::vector<double>> time_raw_copies(Device& device, Direction direction, std::span<const CopySpan> spans,
                                            RawWay way, int repeats) {
  auto stream = device.make_stream(Urgency::normal);
  if (!stream.ok()) return stream.status();
  auto event = device.make_event(/*timed=*/false);
  if (!event.ok()) return event.status();
  std::vector<double> samples;
  for (int i = 0; i <= repeats; ++i) {
    const auto start = Clock::now();
    KVO_TRY(copy(**stream, direction, spans, way));
    KVO_TRY(finish(device, **stream, **event));
    if (i > 0) samples.push_back(seconds_since(start));
  }
  return samples;
}

Result<Rates> measure_ceiling(std::shared_ptr<Device> device, std::int64_t bytes, bool both) {
  auto stored = Buffers::create(*device, bytes);
  if (!stored.ok()) return stored.status();
  auto loaded = Buffers::create(*device, bytes);
  if (!loaded.ok()) return loaded.status();
  const auto run = [&](Direction direction, std::vector<double>& samples) {
    const CopySpan span = (direction == Direction::store ? *stored : *loaded)->span(direction);
    auto timed = time_raw_copies(*device, direction, std::span(&span, 1), RawWay::loop, kRepeats);
    if (timed.ok()) samples = std::move(*timed);
    return timed.status();
  };
  std::vector<double> store_samples, load_samples;
  Status beside;
  std::thread other;
  if (both) other = std::thread([&] { beside = run(Direction::load, load_samples); });
  const Status first = run(Direction::store, store_samples);
  if (both)
    other.join();
  else
    beside = run(Direction::load, load_samples);
  KVO_TRY(first);
  KVO_TRY(beside);
  const auto rate = [&](std::vector<double> samples) { return static_cast<double>(bytes) / 1e9 / median(samples); };
  return Rates{rate(std::move(store_samples)), rate(std::move(load_samples))};
}

}  // namespace kvo
