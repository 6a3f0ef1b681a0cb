#include "storage/io_queue.h"

#include <algorithm>
#include <cerrno>
#include <string_view>
#include <thread>

#include "base/fault.h"
#include "base/units.h"

namespace kvo {
namespace {

constexpr int kMostInterruptions = 64;  // of one request; then its error is believed
constexpr int kMostStuck = 3;           // completions in a row that bring it no further

struct NamedError {
  std::string_view point;
  int error;
};
constexpr NamedError kErrors[] = {{"io_eio", EIO},       {"io_enospc", ENOSPC}, {"io_erofs", EROFS},
                                  {"io_eagain", EAGAIN}, {"io_eintr", EINTR},   {"io_estale", ESTALE}};

// What tests make of a completion.
std::int64_t with_faults(std::int64_t result) {
  if (fault::armed_count.load(std::memory_order_relaxed) == 0) return result;
  for (const NamedError& named : kErrors) {
    if (fault::fires(named.point)) return -named.error;
  }
  if (fault::fires("io_delay")) std::this_thread::sleep_for(std::chrono::milliseconds(50));
  if (result > 0 && fault::fires("io_short")) return result / 2;
  if (result > 0 && fault::fires("io_odd")) return std::min<std::int64_t>(result, 513);
  if (result > 0 && fault::fires("io_end")) return 0;
  if (fault::fires("io_long")) return result + kDiskAlign;
  return result;
}

}  // namespace

IoQueue::IoQueue(const IoQueueOptions& options) : operations_(std::max(options.depth, 1)) {
  unused_.reserve(operations_.size());
  for (std::size_t i = operations_.size(); i-- > 0;) unused_.push_back(static_cast<std::uint32_t>(i));
  completions_.reserve(2 * operations_.size());
  made_up_.reserve(operations_.size());
}

void IoQueue::submit(std::span<const IoRequest> requests) {
  for (const IoRequest& request : requests) {
    Operation& operation = operations_[unused_.back()];
    unused_.pop_back();
    operation = {request, 0, operation.generation, 0, 0, true};
    begin(operation);
  }
}

// Starts what is left of a request. Each start has a number of its own.
void IoQueue::begin(Operation& operation) {
  const auto index = static_cast<std::uint64_t>(&operation - operations_.data());
  const std::uint64_t number = (std::uint64_t{++operation.generation} << 32) | index;
  IoRequest part = operation.request;
  part.offset += operation.done_bytes, part.memory += operation.done_bytes, part.bytes -= operation.done_bytes;
  const bool writes = part.kind == IoKind::write;
  if (fault::fires("io_submit")) return made_up_.push_back({number, -EIO});
  if (writes && fault::fires("io_lost_write")) return made_up_.push_back({number, part.bytes});
  if (writes && fault::fires("io_misdirect")) part.offset += operation.request.bytes;
  start(part, number);
}

void IoQueue::reap(std::vector<IoResult>& results, Deadline deadline) {
  completions_.clear();
  completions_.swap(made_up_);
  if (in_flight() > 0 && fault::fires("io_broken")) broken_ = Status(Code::unsupported, "io_uring_enter: ENXIO");
  if (broken_.ok()) broken_ = pump(completions_, completions_.empty() ? deadline : Deadline());
  // begin() adds to made_up_ alone.
  for (const Completion& completion : completions_) settle(completion, results);
}

void IoQueue::settle(const Completion& completion, std::vector<IoResult>& results) {
  const std::uint64_t index = completion.number & 0xffffffff;
  Operation* operation = index < operations_.size() ? &operations_[index] : nullptr;
  if (!operation || !operation->active || operation->generation != completion.number >> 32) {
    ++strays_;
    return;
  }
  const std::int64_t left = operation->request.bytes - operation->done_bytes;
  const std::int64_t result = with_faults(completion.result);
  if (result == left) {
    operation->done_bytes += left;
    return end(*operation, 0, results);
  }
  if (result > left) return end(*operation, EIO, results);
  if (again(*operation, result)) return begin(*operation);
  end(*operation, result < 0 ? static_cast<int>(-result) : 0, results);
}

// Whether a request goes on. What came is kept in whole blocks: direct I/O begins at these alone.
bool IoQueue::again(Operation& operation, std::int64_t result) {
  if (result == -EINTR || result == -EAGAIN) {
    // The kernel is out of something; a queue that is busy otherwise is not held up for it.
    if (result == -EAGAIN && in_flight() == 1) std::this_thread::sleep_for(std::chrono::microseconds(100));
    return ++operation.interrupted <= kMostInterruptions;
  }
  if (result <= 0) return false;
  const std::int64_t blocks = round_down(result, kDiskAlign);
  operation.done_bytes += blocks;
  operation.stuck = blocks > 0 ? 0 : operation.stuck + 1;
  return operation.stuck <= kMostStuck;
}

void IoQueue::end(Operation& operation, int error, std::vector<IoResult>& results) {
  results.push_back({operation.request.tag, operation.done_bytes, error});
  operation.active = false;
  unused_.push_back(static_cast<std::uint32_t>(&operation - operations_.data()));
}

}  // namespace kvo
