#include "memory/prefault.h"

#include <sys/mman.h>

#include <algorithm>
#include <cerrno>
#include <chrono>
#include <exception>

#include "base/fault.h"
#include "base/mapped_region.h"

#ifndef MADV_POPULATE_WRITE
#define MADV_POPULATE_WRITE 23  // Linux 5.14
#endif

namespace kvo {
namespace {

using Clock = std::chrono::steady_clock;

double seconds_since(Clock::time_point start) { return std::chrono::duration<double>(Clock::now() - start).count(); }

// Nobody reads or writes the range yet, so writing zeros changes nothing.
void touch(std::byte* address, std::int64_t bytes) {
  for (std::int64_t at = 0; at < bytes; at += kPageBytes) *const_cast<volatile std::byte*>(address + at) = std::byte{0};
}

Status populate(std::byte* address, std::int64_t bytes) {
  if (fault::fires("populate")) return Status(Code::memory, "no memory behind " + human_bytes(bytes) + " (injected)");
  while (madvise(address, bytes, MADV_POPULATE_WRITE) != 0) {
    if (errno == EINTR) continue;
    if (errno != EINVAL && errno != ENOSYS) {
      return Status(Code::memory, "no memory behind " + human_bytes(bytes) + ": " + errno_text(errno));
    }
    touch(address, bytes);  // a kernel that does not know the advice
    break;
  }
  return {};
}

}  // namespace

Prefaulter::Prefaulter(std::byte* base, std::int64_t bytes, PrefaultOptions options, const std::atomic<bool>& stop,
                       std::atomic<bool>& gave_up_huge_pages)
    : base_(base), bytes_(bytes), options_(options), stop_(stop), gave_up_huge_pages_(gave_up_huge_pages) {
  const std::int64_t units = round_up(bytes, kPrefaultUnitBytes) / kPrefaultUnitBytes;
  done_.resize(units);
  const auto wanted = std::min<std::int64_t>(options_.threads, units);
  threads_.reserve(wanted);
  std::lock_guard lock(mutex_);
  try {
    for (; working_ < wanted; ++working_) threads_.emplace_back([this] { work(); });
  } catch (const std::exception&) {  // a limit on threads: those that run will do
  }
}

Prefaulter::~Prefaulter() {
  quit_ = true;
  for (std::thread& thread : threads_) thread.join();
}

Status Prefaulter::wait(std::int64_t end) {
  const std::int64_t units = round_up(end, kPrefaultUnitBytes) / kPrefaultUnitBytes;
  std::unique_lock lock(mutex_);
  while (threads_.empty() && populated_units_ < units) {
    lock.unlock();
    const bool more = populate_next();
    lock.lock();
    if (!more) break;
  }
  changed_.wait(lock, [&] { return populated_units_ >= units || working_ == 0; });
  if (populated_units_ >= units) return {};
  return failure_.ok() ? Status(Code::closed, "closed while its memory was being prepared") : failure_;
}

void Prefaulter::work() noexcept {
  if (options_.cores) sched_setaffinity(0, sizeof *options_.cores, &*options_.cores);
  while (populate_next()) {
  }
  std::lock_guard lock(mutex_);
  --working_;
  changed_.notify_all();
}

bool Prefaulter::populate_next() {
  if (stop_ || quit_) return false;
  const std::int64_t unit = next_unit_.fetch_add(1, std::memory_order_relaxed);
  const std::int64_t start = unit * kPrefaultUnitBytes;
  if (start >= bytes_) return false;
  const std::int64_t end = std::min(start + kPrefaultUnitBytes, bytes_);
  const Clock::time_point began = Clock::now();
  const Status status = populate(base_ + start, end - start);
  watch_pace(end, seconds_since(began));
  finish_unit(unit, status);
  return status.ok();
}

void Prefaulter::finish_unit(std::int64_t unit, Status status) {
  std::lock_guard lock(mutex_);
  if (!status.ok()) {
    // Units before this one are in other threads' hands and still count; none after it is taken.
    if (failure_.ok()) failure_ = std::move(status);
    quit_ = true;
  } else {
    done_[unit] = true;
    const auto units = static_cast<std::int64_t>(done_.size());
    while (populated_units_ < units && done_[populated_units_]) ++populated_units_;
  }
  changed_.notify_all();
}

// On a fragmented host the kernel may compact memory for minutes to make huge pages; small ones are the better deal.
void Prefaulter::watch_pace(std::int64_t end, double seconds) {
  if (!options_.huge_pages || seconds <= options_.huge_page_stall_seconds) return;
  if (gave_up_huge_pages_.exchange(true) || end >= bytes_) return;
  madvise(base_ + end, bytes_ - end, MADV_NOHUGEPAGE);
}

}  // namespace kvo
