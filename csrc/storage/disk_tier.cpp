#include "storage/disk_tier.h"

#include <algorithm>
#include <system_error>

namespace kvo {

Result<std::unique_ptr<DiskTier>> DiskTier::open(DiskTierOptions options) {
  const RecordOwner owner{options.slab.fingerprint, options.slab.rank};
  KVO_TRY(check_name(owner, {}));
  auto slab = Slab::open(options.slab);
  if (!slab.ok()) return slab.status();
  auto shared =
      std::make_shared<DiskShared>(options.most_waiting, DiskHealth(options.most_failures, options.retry_seconds));
  shared->slab = std::move(*slab);
  shared->owner = owner;
  shared->io = options.io;
  shared->queue = {shared->slab->files(), 1, options.memory, options.memory_bytes};
  shared->memory_ready = std::move(options.memory_ready);
  shared->memory_owner = std::move(options.memory_owner);
  std::unique_ptr<DiskTier> tier(new DiskTier(std::move(shared)));
  KVO_TRY(tier->tune(options));
  KVO_TRY(tier->start(std::clamp(options.threads, 1, 64)));
  return tier;
}

// Only a slab that holds nothing is tried; what was found there is kept with it.
Status DiskTier::tune(const DiskTierOptions& options) {
  Slab& slab = *shared_->slab;
  IoQueueOptions& queue = shared_->queue;
  DiskTuning tuning = slab.tuning();
  if (tuning.depth == 0 && (options.depth == 0 || options.request_bytes == 0)) {
    DiskProbeOptions probe{options.io, queue, slab.identity() == 0 ? slab.plan().file_bytes() : 0};
    probe.queue.memory_bytes = shared_->memory_ready ? std::min(shared_->memory_ready(), queue.memory_bytes) : 0;
    tuning = probe_disk(probe);
    if (tuning.read_bytes_per_second > 0) KVO_TRY(slab.set_tuning(tuning));
  }
  if (options.depth > 0) tuning.depth = options.depth;
  if (options.request_bytes > 0) tuning.request_bytes = options.request_bytes;
  tuning.depth = std::clamp(tuning.depth, 1, 1024);
  tuning.request_bytes = std::max(round_down(tuning.request_bytes, kDiskAlign), kDiskAlign);
  queue.depth = tuning.depth, shared_->request_bytes = tuning.request_bytes;
  report_.tuning = tuning;
  return {};
}

Status DiskTier::start(int threads) {
  report_.slab = shared_->slab->report();
  for (int i = 0; i < threads; ++i) {
    auto worker = std::make_shared<DiskWorker>(shared_);
    try {
      threads_.emplace_back([worker] { worker->run(); });
    } catch (const std::system_error& error) {
      if (i > 0) break;  // fewer do as well
      return Status(Code::unsupported, std::string("cannot start an I/O thread: ") + error.what());
    }
    workers_.push_back(worker);
    KVO_TRY(worker->wait_open());
    report_.io = worker->name(), report_.note = worker->note();
  }
  return {};
}

DiskTier::~DiskTier() {
  if (owner_.forked()) {
    static_cast<void>(new auto(std::move(threads_)));  // of another process
  } else {
    static_cast<void>(close(std::chrono::steady_clock::now() + std::chrono::seconds(5)));
  }
}

Status DiskTier::submit(DiskJob job) {
  KVO_TRY(owner_.check("the disk tier"));
  KVO_TRY(check(job));
  KVO_TRY(shared_->jobs.submit(std::move(job)));
  wake();
  return {};
}

Status DiskTier::check(const DiskJob& job) const {
  const SlabPlan& plan = shared_->slab->plan();
  const auto wrong = [&](const std::string& what) {
    return Status(Code::invalid, "disk job " + std::to_string(job.id) + ": " + what);
  };
  if (job.slot_bytes <= 0 || job.slot_bytes % kDiskAlign != 0 || job.slot_bytes > plan.extent_bytes ||
      job.payload_bytes < 0 || job.payload_bytes > job.slot_bytes - kRecordTrailerBytes) {
    return wrong("a slot of " + std::to_string(job.slot_bytes) + " bytes with a payload of " +
                 std::to_string(job.payload_bytes) + ": slots are multiples of 4,096, 512 of them are the trailer's");
  }
  for (const DiskRecord& record : job.records) {
    const std::int64_t in_extent = record.disk_offset % plan.extent_bytes;
    if (record.disk_offset < 0 || record.disk_offset > plan.bytes - job.slot_bytes || in_extent % job.slot_bytes != 0 ||
        in_extent + job.slot_bytes > plan.extent_bytes) {
      return wrong("no slot begins at " + std::to_string(record.disk_offset) + " of " + std::to_string(plan.bytes));
    }
    if (reinterpret_cast<std::uintptr_t>(record.memory) % kDiskAlign != 0) return wrong("memory that is not aligned");
  }
  return {};
}

void DiskTier::wake() {
  for (const auto& worker : workers_) worker->wake();
}

DiskStats DiskTier::stats() const {
  DiskStats stats = shared_->jobs.stats();
  for (const auto& worker : workers_) {
    stats.strays += worker->strays();
    stats.registered_bytes = std::max(stats.registered_bytes, worker->registered_bytes());
  }
  return stats;
}

Status DiskTier::close(Deadline deadline) {
  KVO_TRY(owner_.check("the disk tier"));
  std::lock_guard lock(closing_);
  shared_->jobs.close();
  wake();
  bool ended = true;
  for (std::size_t i = 0; i < workers_.size(); ++i) {
    const bool worker_ended = workers_[i]->wait_ended(deadline);
    ended = ended && worker_ended && !workers_[i]->leaked();
    if (!threads_[i].joinable()) continue;
    worker_ended ? threads_[i].join() : threads_[i].detach();  // it shares all it uses
  }
  if (ended) return {};
  return Status(Code::timeout, "the disk holds up reads or writes: the memory they use is left to them");
}

}  // namespace kvo
