#include "storage/disk_probe.h"

#include <algorithm>

#include "storage/open_queue.h"

namespace kvo {
namespace {

using Clock = std::chrono::steady_clock;

constexpr std::int64_t kRequestBytes[] = {MiB, 4 * MiB, 16 * MiB};
constexpr int kDepths[] = {1, 2, 4, 8, 16, 32};
constexpr std::int64_t kMostInFlightBytes = 32 * MiB, kMostBytes = 64 * MiB;
constexpr double kNearlyAsFast = 0.95;  // then the lesser depth is better: what waits in the disk cannot be overtaken
constexpr DiskTuning kUsual{8, 0, 4 * MiB, 0, 0};

class Probe {
 public:
  Probe(const DiskProbeOptions& options, std::unique_ptr<IoQueue> queue, std::int64_t bytes)
      : options_(options), queue_(std::move(queue)), bytes_(bytes) {}
  ~Probe() {
    if (!queue_->broken().ok()) static_cast<void>(queue_.release());  // what is in flight stays so
  }

  // Bytes per second of requests of a size at a depth; 0: it failed.
  std::int64_t speed(IoKind kind, const DiskTuning& tuning) {
    const auto began = Clock::now();
    places_.clear(), failed_ = false, next_ = 0;
    for (std::int32_t place = 0; place < tuning.depth; ++place) places_.push_back(place);
    while (queue_->broken().ok() && (queue_->in_flight() > 0 || (!failed_ && next_ < bytes_))) {
      while (!failed_ && next_ < bytes_ && !places_.empty()) submit(kind, tuning.request_bytes);
      reap(tuning.request_bytes);
    }
    const double seconds = std::chrono::duration<double>(Clock::now() - began).count();
    return failed_ || !queue_->broken().ok() ? 0 : static_cast<std::int64_t>(static_cast<double>(bytes_) / seconds);
  }

 private:
  void submit(IoKind kind, std::int64_t request_bytes) {
    const auto file = static_cast<int>(next_ / request_bytes % static_cast<std::int64_t>(options_.queue.files.size()));
    const auto place = static_cast<std::int64_t>(places_.back());
    const IoRequest request{
        kind,          file,          kSlabHeaderBytes + next_, options_.queue.memory + place * request_bytes,
        request_bytes, places_.back()};
    places_.pop_back();
    next_ += request_bytes;
    queue_->submit({&request, 1});
  }

  void reap(std::int64_t request_bytes) {
    results_.clear();
    queue_->reap(results_, Clock::now() + std::chrono::seconds(60));
    for (const IoResult& result : results_) {
      failed_ = failed_ || result.bytes != request_bytes;
      places_.push_back(result.tag);
    }
  }

  const DiskProbeOptions& options_;
  std::unique_ptr<IoQueue> queue_;
  const std::int64_t bytes_;
  std::vector<IoResult> results_;
  std::vector<std::uint64_t> places_;  // parts of the memory that are not in use
  std::int64_t next_ = 0;
  bool failed_ = false;
};

}  // namespace

DiskTuning best_tuning(std::span<const DiskTuning> tried) {
  const auto read_speed = [](const DiskTuning& tuning) { return static_cast<double>(tuning.read_bytes_per_second); };
  double most = 0;
  for (const DiskTuning& tuning : tried) most = std::max(most, read_speed(tuning));
  DiskTuning best = kUsual;
  std::int64_t least_bytes = INT64_MAX;
  for (const DiskTuning& tuning : tried) {
    const std::int64_t in_flight_bytes = tuning.depth * tuning.request_bytes;
    if (read_speed(tuning) < kNearlyAsFast * most || in_flight_bytes >= least_bytes) continue;
    best = tuning, least_bytes = in_flight_bytes;
  }
  return best;
}

DiskTuning probe_disk(const DiskProbeOptions& options) {
  const std::int64_t bytes = round_down(std::min(options.file_bytes - kSlabHeaderBytes, kMostBytes), 16 * MiB);
  const std::int64_t memory_bytes = std::min(options.queue.memory_bytes, kMostInFlightBytes);
  if (bytes <= 0 || memory_bytes < kUsual.request_bytes) return kUsual;
  IoQueueOptions queue_options = options.queue;
  queue_options.depth = kDepths[std::size(kDepths) - 1];
  auto opened = open_io_queue(options.io, queue_options);
  if (!opened.ok()) return kUsual;
  Probe probe(options, std::move(opened->queue), bytes);
  const auto until = Clock::now() + std::chrono::duration<double>(options.seconds);
  if (probe.speed(IoKind::write, {1, 0, kUsual.request_bytes, 0, 0}) == 0)
    return kUsual;  // what was never written is not read from the disk
  std::vector<DiskTuning> tried;
  for (const std::int64_t request_bytes : kRequestBytes) {
    for (const int depth : kDepths) {
      if (depth * request_bytes > memory_bytes || Clock::now() >= until) break;
      tried.push_back({depth, 0, request_bytes, 0, 0});
      tried.back().read_bytes_per_second = probe.speed(IoKind::read, tried.back());
    }
  }
  DiskTuning best = best_tuning(tried);
  best.write_bytes_per_second = probe.speed(IoKind::write, best);
  return best.read_bytes_per_second > 0 && best.write_bytes_per_second > 0 ? best : kUsual;
}

}  // namespace kvo
