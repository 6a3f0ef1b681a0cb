#include "memory/filler.h"

#include <algorithm>
#include <exception>
#include <system_error>

#include "base/fault.h"
#include "memory/arena.h"

namespace kvo {

// Registering holds a lock in the driver that kernel launches of other threads wait for. Pieces are small, and between
// two of them those threads get this long.
constexpr std::chrono::microseconds kYield{200};

Filler::Filler(Device& device, MappedRegion& region, PrefaultOptions options, bool held)
    : device_(device), region_(region), options_(options), held_(held) {}

Status Filler::start() try {
  thread_ = std::thread([this] { run(); });
  return {};
} catch (const std::system_error& error) {
  return Status(Code::unsupported, std::string("cannot start the thread that pins memory: ") + error.what());
}

void Filler::go_on() {
  {
    std::lock_guard lock(mutex_);
    held_ = false;
  }
  changed_.notify_all();
}

void Filler::stop() {
  {
    std::lock_guard lock(mutex_);
    stop_ = true;
  }
  changed_.notify_all();
  if (thread_.joinable()) thread_.join();
}

bool Filler::wait(std::int64_t bytes, Deadline deadline) {
  std::unique_lock lock(mutex_);
  return changed_.wait_until(lock, deadline, [&] { return settled(bytes); });
}

void Filler::wait(std::int64_t bytes) {
  std::unique_lock lock(mutex_);
  changed_.wait(lock, [&] { return settled(bytes); });
}

Filler::Progress Filler::progress() const {
  std::lock_guard lock(mutex_);
  Progress progress = progress_;
  progress.ready_bytes = ready_bytes();
  progress.gave_up_huge_pages = gave_up_huge_pages_;
  if (!progress.finished) progress.seconds = seconds();
  return progress;
}

Status Filler::unpin_all() {
  const std::int64_t pinned_bytes = ready_.exchange(0);
  Status first;
  for (std::int64_t offset = 0; offset < pinned_bytes; offset += kPieceBytes) {
    Status status = device_.unpin(region_.base() + offset);
    if (first.ok()) first = std::move(status);
  }
  return first;
}

void Filler::run() noexcept try { finish(fill()); } catch (const std::exception& error) {
  finish(Status(Code::memory, error.what()));
}

Status Filler::fill() {
  KVO_TRY(device_.enter_thread());
  Prefaulter prefaulter(region_.base(), region_.bytes(), options_, stop_, gave_up_huge_pages_);
  return fill_pieces(prefaulter);
}

Status Filler::fill_pieces(Prefaulter& prefaulter) {
  for (std::int64_t offset = 0; offset < region_.bytes();) {
    const std::int64_t end = std::min(offset + kPieceBytes, region_.bytes());
    KVO_TRY(prefaulter.wait(end));
    if (stop_) return Status(Code::closed, "closed while its memory was being pinned");
    KVO_TRY(pin(offset, end - offset));
    publish(end);
    // The first bytes are waited for: nothing is launched beside them yet.
    if (end >= kFirstReadyBytes && end < region_.bytes()) {
      wait_while_held();
      yield_driver_lock();
    }
    offset = end;
  }
  return {};
}

Status Filler::pin(std::int64_t offset, std::int64_t bytes) {
  Status status =
      fault::fires("pin") ? Status(Code::device, "(injected)") : device_.pin(region_.base() + offset, bytes);
  if (status.ok()) return {};
  return Status(status.code(), "page-locking " + human_bytes(bytes) + " of host memory at offset " +
                                   human_bytes(offset) + " failed: " + status.message() +
                                   " (containers and WSL may limit page-locked memory whatever ulimit -l says)");
}

void Filler::publish(std::int64_t ready_bytes) {
  std::lock_guard lock(mutex_);
  ready_.store(ready_bytes, std::memory_order_release);
  if (ready_bytes <= kFirstReadyBytes) progress_.first_ready_seconds = seconds();
  changed_.notify_all();
}

void Filler::yield_driver_lock() {
  std::unique_lock lock(mutex_);
  changed_.wait_for(lock, kYield, [&] { return stop_.load(); });
}

void Filler::wait_while_held() {
  std::unique_lock lock(mutex_);
  changed_.wait(lock, [&] { return !held_ || stop_; });
}

void Filler::finish(Status status) {
  // What was prefaulted and will not be used goes back.
  if (!status.ok()) region_.discard(ready_bytes());
  std::lock_guard lock(mutex_);
  progress_.finished = true;
  progress_.failure = std::move(status);
  progress_.seconds = seconds();
  changed_.notify_all();
}

}  // namespace kvo
