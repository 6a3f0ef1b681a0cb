// The lane's thread: from a transfer's ids to copies on the stream.
#include <algorithm>

#include "base/fault.h"
#include "transfer/guarded.h"
#include "transfer/lane.h"

namespace kvo {

namespace {

// The window: at most about (kWindowSteps + 1) * kWindowStep copies wait on the device. A transfer's own operations
// (waits, events) count as kTransferCost copies.
constexpr std::int64_t kWindowStep = 1024;
constexpr std::size_t kWindowSteps = 4;
constexpr std::size_t kWindowStepsWaitedFor = 16;  // while a caller waits for a transfer to be enqueued
constexpr std::int64_t kTransferCost = 32;
constexpr auto kWindowPoll = std::chrono::microseconds(20);

}  // namespace

// On failure `end` is set if copies may be running, so that nobody reuses their memory before it fires.
Status Lane::enqueue(Transfer& transfer) {
  if (fault::fires("enqueue_delay")) std::this_thread::sleep_for(std::chrono::milliseconds(200));
  auto start = events_->take();
  if (!start.ok()) return start.status();
  auto end = events_->take();
  if (!end.ok()) return end.status();
  locate(transfer);
  transfer.result.choice = choose(transfer);
  lane_was_busy_ = last_end_ && device_->query(*last_end_) == EventState::pending;
  route_ = route_of(transfer.result.choice.path);
  KVO_TRY(make_room(kTransferCost));
  KVO_TRY(route_.first->wait(*transfer.after));
  if (last_end_ && end_stream_ != route_.last) KVO_TRY(route_.last->wait(*last_end_));
  KVO_TRY(route_.first->record(**start));
  transfer.start = std::move(*start);
  transfer.end = last_end_ = std::move(*end);
  end_stream_ = route_.last;
  Status copied = guarded([&] { return copy_all(transfer); });
  Status recorded = guarded([&] { return record_end(*transfer.end, copied.ok()); });
  transfer.endless = !recorded.ok();
  return recorded.ok() ? copied : recorded;
}

// Of a transfer that failed, steps on the first stream may be running that the last stream does not wait for.
Status Lane::record_end(Event& end, bool complete) {
  if (!complete && route_.first != route_.last) {
    KVO_TRY(route_.first->record(end));
    KVO_TRY(route_.last->wait(end));
  }
  return route_.last->record(end);
}

// A path's last step is the one that writes where the bytes go: host memory (store) or blocks (load). Kernels of loads
// run where those of staged loads do, so that a lane of one kind of model needs no waits between its streams.
Lane::Route Lane::route_of(Path path) const {
  Stream *const copies = copy_stream_.get(), *const pages = page_stream_.get();
  const bool store = options_.direction == Direction::store;
  if (path == Path::staged) return store ? Route{pages, copies} : Route{copies, pages};
  if (path == Path::kernel && !store) return {pages, pages};
  return {copies, copies};
}

void Lane::locate(Transfer& transfer) {
  const Group& group = groups_[transfer.group];
  const auto& [blocks, slots] = transfer.ids;
  blocks_.assign(blocks.ids.get(), blocks.ids.get() + blocks.count);
  slots_.clear();
  for (std::int64_t i = 0; i < slots.count; ++i)
    slots_.push_back(options_.arena + options_.extents.offset_of(transfer.group, slots.ids[i]));
  ids_.put_back(transfer.ids);
  transfer.result.bytes =
      static_cast<std::int64_t>(blocks_.size() - (slots_.empty() ? 0 : transfer.skip_blocks)) * group.block_bytes;
}

Status Lane::copy_all(Transfer& transfer) {
  if (slots_.empty()) return {};
  switch (transfer.result.choice.path) {
    case Path::dma:
      return copy_by_dma(transfer);
    case Path::kernel:
      return copy_by_kernel(transfer, slots_.size());
    case Path::staged:
      return copy_staged(transfer);
  }
  return {};
}

Status Lane::copy_by_dma(Transfer& transfer) {
  plan(transfer);
  // Tests: the nth copy fails, those before it are under way.
  std::size_t good = 0;
  while (good < copies_.size() && !fault::fires("copy")) ++good;
  KVO_TRY(copy_in_steps(std::span(copies_).first(good)));
  if (good == copies_.size()) return {};
  return Status(Code::device,
                "copy " + std::to_string(good) + " of " + std::to_string(copies_.size()) + " failed (injected)");
}

void Lane::plan(const Transfer& transfer) {
  long_blocks_.assign(blocks_.begin(), blocks_.end());
  slot_offsets_.clear(), spans_.clear(), copies_.clear();
  for (const std::byte* slot : slots_) slot_offsets_.push_back(slot - options_.arena);
  plan_spans(options_.groups[transfer.group], {long_blocks_, slot_offsets_, transfer.skip_blocks}, options_.cut_bytes,
             spans_);
  const bool store = options_.direction == Direction::store;
  for (const Span& span : spans_) {
    auto* device = reinterpret_cast<std::byte*>(span.device);
    std::byte* host = options_.arena + span.host;
    copies_.push_back({store ? host : device, store ? device : host, span.bytes});
  }
}

Status Lane::copy_in_steps(std::span<const CopySpan> copies) {
  while (!copies.empty()) {
    const auto step = copies.first(std::min<std::size_t>(copies.size(), kWindowStep));
    KVO_TRY(make_room(static_cast<std::int64_t>(step.size())));
    if (abandoned_) return Status(Code::closed, "closed before all copies were enqueued");
    KVO_TRY(copy_stream_->copy(step, options_.direction));
    copies = copies.subspan(step.size());
  }
  return {};
}

Status Lane::make_room(std::int64_t cost) {
  if ((window_cost_ += cost) < kWindowStep) return {};
  window_cost_ = 0;
  auto point = events_->take();
  if (!point.ok()) return point.status();
  KVO_TRY(route_.last->record(**point));
  window_.push_back(std::move(*point));
  while (window_.size() > (callers_waiting_ ? kWindowStepsWaitedFor : kWindowSteps)) {
    if (abandoned_) return Status(Code::closed, "closed before all copies were enqueued");
    const EventState state = device_->query(*window_.front());
    if (state == EventState::failed)
      return Status(Code::device, "the device reported an error before the transfer started");
    if (state == EventState::pending)
      std::this_thread::sleep_for(kWindowPoll);
    else
      window_.pop_front();
  }
  return {};
}

}  // namespace kvo
