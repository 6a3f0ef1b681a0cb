#include "transfer/lane.h"

#include <algorithm>
#include <system_error>

#include "base/brief_lock.h"
#include "base/owner_process.h"
#include "transfer/guarded.h"

namespace kvo {

namespace {

constexpr auto kFirstPoll = std::chrono::microseconds(10);
constexpr auto kLongestPoll = std::chrono::microseconds(200);
// A thread that sleeps takes 20 to 60 us to come back, so it stays awake between the transfers of a busy moment: about
// as long as one of 100 MB takes. With few cores for everybody it only waits for what was announced.
constexpr unsigned kFewCores = 4;
constexpr int kRelaxes = 8, kYieldAfter = 256;
const auto kStayAwake = std::chrono::microseconds(std::thread::hardware_concurrency() > kFewCores ? 3000 : 200);
constexpr std::int64_t kUnpolledDepths = 16;  // most results that nobody asked for, in queue depths

Status timed_out(const char* what) {
  return Status(Code::timeout, std::string("the deadline passed before the transfer was ") + what +
                                   "; it goes on: wait again, or close");
}

}  // namespace

Result<std::shared_ptr<Lane>> Lane::create(std::shared_ptr<Device> device, LaneOptions options,
                                           std::unique_ptr<Staging> staging) try {
  std::shared_ptr<Lane> lane(new Lane(std::move(device), std::move(options), std::move(staging)), LeakInFork<Lane>());
  auto copy_stream = lane->device_->make_stream(Urgency::normal);
  if (!copy_stream.ok()) return copy_stream.status();
  lane->copy_stream_ = std::move(*copy_stream);
  auto page_stream = lane->device_->make_stream(lane->options_.urgency);
  if (!page_stream.ok()) return page_stream.status();
  lane->page_stream_ = std::move(*page_stream);
  KVO_TRY(lane->make_page_table());
  auto events = EventPool::create(lane->device_, /*timed=*/true, 2 * lane->options_.depth);
  if (!events.ok()) return events.status();
  lane->events_ = std::move(*events);
  lane->thread_ = std::thread([raw = lane.get()] { raw->run(); });
  return lane;
} catch (const std::system_error& error) {
  return Status(Code::unsupported, std::string("cannot start a thread for transfers (see ulimit -u): ") + error.what());
}

Lane::~Lane() { stop(); }

void Lane::announce() {
  {
    const auto lock = lock_briefly(mutex_);
    if (!idle_locked()) return;
    announced_ = true;
    ++calls_;
  }
  changed_.notify_all();
}

Status Lane::submit(std::shared_ptr<Transfer> transfer) {
  {
    const auto lock = lock_briefly(mutex_);
    if (broken_) return Status(Code::device, "an earlier transfer of this direction was lost: make a new mover");
    if (static_cast<std::int64_t>(finished_.size()) >= kUnpolledDepths * options_.depth)
      return Status(Code::queue_full, std::to_string(finished_.size()) + " finished jobs wait to be told: call poll()");
    // What moves nothing costs nothing: it may always come, within reason.
    const std::int64_t depth = transfer->ids.slots.count > 0 ? options_.depth : 4 * options_.depth;
    if (stats_.unfinished >= depth) reap_locked();
    if (stats_.unfinished >= depth) {
      ++stats_.rejected;
      return Status(Code::queue_full, std::to_string(stats_.unfinished) +
                                          " transfers of this direction are in flight, queue_depth allows " +
                                          std::to_string(options_.depth) +
                                          ": wait for some to finish, or raise queue_depth");
    }
    ++stats_.unfinished;
    queue_.push_back(std::move(transfer));
    ++calls_;
  }
  changed_.notify_all();
  return {};
}

void Lane::run() noexcept {
  const Status served = guarded([&] { return serve(), Status(); });
  if (served.ok()) return;
  const auto lock = lock_briefly(mutex_);
  broken_ = true;
}

void Lane::serve() {
  const Status entered = device_->enter_thread();
  auto lock = lock_briefly(mutex_);
  for (;;) {
    changed_.wait(lock, [&] { return stopping_ || announced_ || !queue_.empty(); });
    if (stopping_) return;
    announced_ = false;
    if (queue_.empty()) stay_awake(lock);
    if (queue_.empty()) continue;
    std::shared_ptr<Transfer> transfer = std::move(queue_.front());
    queue_.pop_front();
    transfer->state = TransferState::starting;
    starting_ = true;
    lock.unlock();
    Status status = entered.ok() ? guarded([&] { return enqueue(*transfer); }) : entered;
    lock = lock_briefly(mutex_);
    starting_ = false;
    if (transfer->end) {
      transfer->status = std::move(status);
      broken_ |= transfer->endless;
      transfer->state = TransferState::enqueued;
      in_flight_.push_back(std::move(transfer));
    } else {
      finish_locked(transfer, std::move(status));
    }
    changed_.notify_all();
    if (queue_.empty()) stay_awake(lock);
  }
}

// Until somebody calls, or for a while.
void Lane::stay_awake(std::unique_lock<std::mutex>& lock) {
  const std::int64_t called = calls_;
  lock.unlock();
  const auto until = std::chrono::steady_clock::now() + kStayAwake;
  for (int i = 1; calls_ == called && std::chrono::steady_clock::now() < until; ++i) {
    for (int j = 0; j < kRelaxes; ++j) relax();
    if (i % kYieldAfter == 0) std::this_thread::yield();
  }
  lock = lock_briefly(mutex_);
}

void Lane::reap() {
  const auto lock = lock_briefly(mutex_);
  reap_locked();
}

void Lane::reap_locked() {
  bool any = false;
  while (!in_flight_.empty()) {
    const std::shared_ptr<Transfer> transfer = in_flight_.front();
    if (transfer->endless) break;
    const EventState state = device_->query(*transfer->end);
    if (state == EventState::pending) break;
    in_flight_.pop_front();
    if (state == EventState::failed && transfer->status.ok())
      transfer->status = Status(Code::device, "the device reported an error while the transfer ran");
    if (transfer->status.ok()) {
      transfer->result.seconds = device_->seconds_between(*transfer->start, *transfer->end);
      selector_.learn(transfer->result.choice, transfer->result.seconds);
    }
    finish_locked(transfer, transfer->status);
    any = true;
  }
  if (any) changed_.notify_all();
}

void Lane::finish_locked(const std::shared_ptr<Transfer>& transfer, Status status) {
  transfer->state = TransferState::finished;
  transfer->result.ok = status.ok();
  if (!status.ok()) transfer->result.bytes = 0;
  transfer->result.status = std::move(status);
  ids_.put_back(transfer->ids);
  transfer->after.reset(), transfer->start.reset(), transfer->end.reset();
  --stats_.unfinished;
  ++stats_.transfers;
  stats_.failures += !transfer->result.ok;
  stats_.bytes += transfer->result.bytes;
  stats_.seconds += transfer->result.seconds;
  if (transfer->job > 0) finished_.push_back(transfer);
}

void Lane::set_path_table(PathTable table) {
  const auto lock = lock_briefly(mutex_);
  selector_.set_table(std::move(table));
}

Status Lane::before(Transfer& transfer, StreamHandle stream, Deadline deadline) {
  std::shared_ptr<Event> end;
  Status status = enqueued_end(transfer, deadline, end);
  if (!end) return status;
  // Also when it failed: copies before the one that failed may be running.
  Status edge = device_->wait(stream, *end, deadline);
  return status.ok() ? edge : status;
}

// `end` stays empty where there is nothing to wait for.
Status Lane::enqueued_end(Transfer& transfer, Deadline deadline, std::shared_ptr<Event>& end) {
  auto lock = lock_briefly(mutex_);
  auto on_device = [&] { return transfer.state >= TransferState::enqueued; };
  ++callers_waiting_;
  const bool in_time = changed_.wait_until(lock, deadline, on_device);
  --callers_waiting_;
  if (!in_time) return timed_out("enqueued");
  if (transfer.state == TransferState::finished) return transfer.result.status;
  if (!transfer.endless) end = transfer.end;
  return transfer.status;
}

bool Lane::done(Transfer& transfer) {
  // A caller that spins here must not keep the lane's thread from its lock.
  if (transfer.state < TransferState::enqueued) return false;
  const auto lock = lock_briefly(mutex_);
  reap_locked();
  return transfer.state == TransferState::finished;
}

Status Lane::wait(Transfer& transfer, Deadline deadline) {
  std::chrono::microseconds pause = kFirstPoll;
  auto lock = lock_briefly(mutex_);
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
  const auto lock = lock_briefly(mutex_);
  auto place = std::find_if(queue_.begin(), queue_.end(), [&](auto& queued) { return queued.get() == &transfer; });
  if (place == queue_.end()) return false;
  const std::shared_ptr<Transfer> cancelled = *place;
  queue_.erase(place);
  finish_locked(cancelled, Status(Code::cancelled, "cancelled before it started"));
  changed_.notify_all();
  return true;
}

void Lane::take_finished(std::vector<std::shared_ptr<Transfer>>& out) {
  const auto lock = lock_briefly(mutex_);
  reap_locked();
  out.insert(out.end(), finished_.begin(), finished_.end());
  finished_.clear();
}

LaneStats Lane::stats() {
  const auto lock = lock_briefly(mutex_);
  reap_locked();
  return stats_;
}

Status Lane::drain(Deadline deadline) {
  auto lock = lock_briefly(mutex_);
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
    const auto lock = lock_briefly(mutex_);
    stopping_ = true;
    ++calls_;
  }
  changed_.notify_all();
  if (thread_.joinable()) thread_.join();
  staging_.reset();
}

void Lane::abandon() {
  abandoned_ = true;
  {
    const auto lock = lock_briefly(mutex_);
    stopping_ = true;
    ++calls_;
  }
  changed_.notify_all();
  if (thread_.joinable()) thread_.detach();
}

}  // namespace kvo
