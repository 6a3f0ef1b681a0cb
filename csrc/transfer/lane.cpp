#include "transfer/lane.h"

#include <algorithm>

#include "base/fault.h"
#include "base/owner_process.h"

namespace kvo {

namespace {

constexpr auto kFirstPoll = std::chrono::microseconds(10);
constexpr auto kLongestPoll = std::chrono::microseconds(200);

// The window: at most about (kWindowSteps + 1) * kWindowStep copies wait on the device. A transfer's own operations
// (waits, events) count as kTransferCost copies.
constexpr std::int64_t kWindowStep = 1024;
constexpr std::size_t kWindowSteps = 4;
constexpr std::int64_t kTransferCost = 32;
constexpr auto kWindowPoll = std::chrono::microseconds(20);

Status timed_out(const char* what) {
  return Status(Code::timeout, std::string("the deadline passed before the transfer was ") + what +
                                   "; it goes on: wait again, or close");
}

}  // namespace

Result<std::shared_ptr<Lane>> Lane::create(std::shared_ptr<Device> device, LaneOptions options) {
  std::shared_ptr<Lane> lane(new Lane(std::move(device), std::move(options)), LeakInFork<Lane>());
  auto stream = lane->device_->make_stream();
  if (!stream.ok()) return stream.status();
  lane->stream_ = std::move(*stream);
  auto events = EventPool::create(lane->device_, /*timed=*/true, 2 * lane->options_.depth);
  if (!events.ok()) return events.status();
  lane->events_ = std::move(*events);
  lane->thread_ = std::thread([raw = lane.get()] { raw->run(); });
  return lane;
}

Lane::~Lane() { stop(); }

Status Lane::submit(std::shared_ptr<Transfer> transfer) {
  {
    std::lock_guard lock(mutex_);
    if (stats_.unfinished >= options_.depth) reap_locked();
    if (stats_.unfinished >= options_.depth) {
      ++stats_.rejected;
      return Status(Code::queue_full, std::to_string(stats_.unfinished) +
                                          " transfers of this direction are in flight, queue_depth allows " +
                                          std::to_string(options_.depth) +
                                          ": wait for some to finish, or raise queue_depth");
    }
    ++stats_.unfinished;
    queue_.push_back(std::move(transfer));
  }
  changed_.notify_all();
  return {};
}

void Lane::run() {
  const Status entered = device_->enter_thread();
  std::unique_lock lock(mutex_);
  for (;;) {
    changed_.wait(lock, [&] { return stopping_ || !queue_.empty(); });
    if (stopping_) return;
    std::shared_ptr<Transfer> transfer = std::move(queue_.front());
    queue_.pop_front();
    transfer->state = TransferState::starting;
    starting_ = true;
    lock.unlock();
    Status status = entered.ok() ? enqueue(*transfer) : entered;
    lock.lock();
    starting_ = false;
    if (transfer->end) {
      transfer->status = std::move(status);
      transfer->state = TransferState::enqueued;
      in_flight_.push_back(std::move(transfer));
    } else {
      finish_locked(transfer, std::move(status));
    }
    changed_.notify_all();
  }
}

// On failure `end` is set if copies may be running, so that nobody reuses their memory before it fires.
Status Lane::enqueue(Transfer& transfer) {
  if (fault::fires("enqueue_delay")) std::this_thread::sleep_for(std::chrono::milliseconds(200));
  auto start = events_->take();
  if (!start.ok()) return start.status();
  auto end = events_->take();
  if (!end.ok()) return end.status();
  KVO_TRY(make_room(kTransferCost));
  KVO_TRY(stream_->wait(*transfer.after));
  KVO_TRY(stream_->record(**start));
  Status copied = copy_all(transfer);
  Status recorded = stream_->record(**end);
  if (!recorded.ok()) return recorded;
  transfer.start = std::move(*start);
  transfer.end = std::move(*end);
  return copied;
}

Status Lane::copy_all(Transfer& transfer) {
  plan(transfer);
  // Tests: the nth copy fails, those before it are under way.
  std::size_t good = 0;
  while (good < copies_.size() && !fault::fires("copy")) ++good;
  KVO_TRY(copy_in_steps(std::span(copies_).first(good)));
  if (good == copies_.size()) return {};
  return Status(Code::device,
                "copy " + std::to_string(good) + " of " + std::to_string(copies_.size()) + " failed (injected)");
}

void Lane::plan(Transfer& transfer) {
  blocks_.assign(transfer.blocks.ids.get(), transfer.blocks.ids.get() + transfer.blocks.count);
  slot_offsets_.clear(), spans_.clear(), copies_.clear();
  for (std::int64_t i = 0; i < transfer.slots.count; ++i)
    slot_offsets_.push_back(options_.extents.offset_of(transfer.group, transfer.slots.ids[i]));
  ids_.put_back(transfer.blocks), ids_.put_back(transfer.slots);
  plan_spans(options_.groups[transfer.group], {blocks_, slot_offsets_, transfer.skip_blocks}, options_.cut_bytes,
             spans_);
  const bool store = options_.direction == Direction::store;
  for (const Span& span : spans_) {
    auto* device = reinterpret_cast<std::byte*>(span.device);
    std::byte* host = options_.arena + span.host;
    copies_.push_back({store ? host : device, store ? device : host, span.bytes});
    transfer.result.bytes += span.bytes;
  }
}

Status Lane::copy_in_steps(std::span<const CopySpan> copies) {
  while (!copies.empty()) {
    const auto step = copies.first(std::min<std::size_t>(copies.size(), kWindowStep));
    KVO_TRY(make_room(static_cast<std::int64_t>(step.size())));
    KVO_TRY(stream_->copy(step, options_.direction));
    copies = copies.subspan(step.size());
  }
  return {};
}

Status Lane::make_room(std::int64_t cost) {
  if ((window_cost_ += cost) < kWindowStep) return {};
  window_cost_ = 0;
  auto point = events_->take();
  if (!point.ok()) return point.status();
  KVO_TRY(stream_->record(**point));
  window_.push_back(std::move(*point));
  while (window_.size() > kWindowSteps) {
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

void Lane::reap() {
  std::lock_guard lock(mutex_);
  reap_locked();
}

void Lane::reap_locked() {
  bool any = false;
  while (!in_flight_.empty()) {
    const std::shared_ptr<Transfer> transfer = in_flight_.front();
    const EventState state = device_->query(*transfer->end);
    if (state == EventState::pending) break;
    in_flight_.pop_front();
    if (state == EventState::failed && transfer->status.ok())
      transfer->status = Status(Code::device, "the device reported an error while the transfer ran");
    if (transfer->status.ok()) transfer->result.seconds = device_->seconds_between(*transfer->start, *transfer->end);
    finish_locked(transfer, transfer->status);
    any = true;
  }
  if (any) changed_.notify_all();
}

void Lane::finish_locked(const std::shared_ptr<Transfer>& transfer, Status status) {
  transfer->state = TransferState::finished;
  transfer->result.ok = status.ok();
  transfer->result.path = device_->is_cuda() ? "dma" : "host";
  if (!status.ok()) transfer->result.bytes = 0;
  transfer->result.status = std::move(status);
  ids_.put_back(transfer->blocks), ids_.put_back(transfer->slots);
  transfer->after.reset(), transfer->start.reset(), transfer->end.reset();
  --stats_.unfinished;
  ++stats_.transfers;
  stats_.failures += !transfer->result.ok;
  stats_.bytes += transfer->result.bytes;
  stats_.seconds += transfer->result.seconds;
  if (transfer->job > 0) finished_.push_back(transfer);
}

Status Lane::before(Transfer& transfer, StreamHandle stream, Deadline deadline) {
  std::shared_ptr<Event> end;
  {
    std::unique_lock lock(mutex_);
    auto on_device = [&] { return transfer.state >= TransferState::enqueued; };
    if (!changed_.wait_until(lock, deadline, on_device)) return timed_out("enqueued");
    if (transfer.state == TransferState::finished) return transfer.result.status;
    KVO_TRY(transfer.status);
    end = transfer.end;
  }
  return device_->wait(stream, *end, deadline);
}

bool Lane::done(Transfer& transfer) {
  std::lock_guard lock(mutex_);
  reap_locked();
  return transfer.state == TransferState::finished;
}

Status Lane::wait(Transfer& transfer, Deadline deadline) {
  std::chrono::microseconds pause = kFirstPoll;
  std::unique_lock lock(mutex_);
  for (;;) {
    reap_locked();
    if (transfer.state == TransferState::finished) return {};
    const auto now = std::chrono::steady_clock::now();
    if (now >= deadline) return timed_out("finished");
    changed_.wait_until(lock, std::min(deadline, now + pause));
    pause = std::min(2 * pause, kLongestPoll);
  }
}

bool Lane::cancel(Transfer& transfer) {
  std::lock_guard lock(mutex_);
  auto place = std::find_if(queue_.begin(), queue_.end(), [&](auto& queued) { return queued.get() == &transfer; });
  if (place == queue_.end()) return false;
  const std::shared_ptr<Transfer> cancelled = *place;
  queue_.erase(place);
  finish_locked(cancelled, Status(Code::cancelled, "cancelled before it started"));
  changed_.notify_all();
  return true;
}

void Lane::take_finished(std::vector<std::shared_ptr<Transfer>>& out) {
  std::lock_guard lock(mutex_);
  reap_locked();
  out.insert(out.end(), finished_.begin(), finished_.end());
  finished_.clear();
}

LaneStats Lane::stats() {
  std::lock_guard lock(mutex_);
  reap_locked();
  return stats_;
}

Status Lane::drain(Deadline deadline) {
  std::unique_lock lock(mutex_);
  for (;;) {
    reap_locked();
    if (idle_locked()) return {};
    const auto now = std::chrono::steady_clock::now();
    if (now >= deadline) break;
    changed_.wait_until(lock, std::min(deadline, now + kLongestPoll));
  }
  while (!queue_.empty()) {
    finish_locked(queue_.front(), Status(Code::cancelled, "closed before it started"));
    queue_.pop_front();
  }
  changed_.notify_all();
  return idle_locked() ? Status() : timed_out("finished");
}

void Lane::stop() {
  {
    std::lock_guard lock(mutex_);
    stopping_ = true;
  }
  changed_.notify_all();
  if (thread_.joinable()) thread_.join();
}

void Lane::abandon() {
  {
    std::lock_guard lock(mutex_);
    stopping_ = true;
  }
  changed_.notify_all();
  if (thread_.joinable()) thread_.detach();
}

}  // namespace kvo
