#include "storage/disk_worker.h"

#include <algorithm>
#include <cerrno>
#include <exception>
#include <utility>

#include "base/fault.h"
#include "base/mapped_region.h"

namespace kvo {
namespace {

using Clock = DiskJobs::Clock;

bool writes(const DiskJobs::Taken& taken) { return taken.job().kind == DiskJobKind::demote; }

// What tests do to a record between the disk and its check.
void with_faults(const DiskJobs::Taken& taken) {
  if (fault::armed_count.load(std::memory_order_relaxed) == 0) return;
  const DiskJob& job = taken.job();
  std::byte* memory = taken.record().memory;
  if (fault::fires("record_payload")) memory[job.payload_bytes / 2] ^= std::byte{1};
  if (fault::fires("record_padding")) memory[job.slot_bytes - kRecordTrailerBytes - 1] ^= std::byte{1};
  if (fault::fires("record_trailer")) memory[job.slot_bytes - kRecordTrailerBytes + 24] ^= std::byte{1};
}

}  // namespace

void DiskWorker::run() noexcept {
  if (!open()) return;
  try {
    serve();
  } catch (const std::exception& error) {
    shared_->jobs.broke(std::string("an I/O thread ended: ") + error.what());
  }
  // What the kernel has nothing of is told; of the rest nobody may hear, so that its memory is never used again.
  for (Active& active : active_) {
    if (!active.taken.running || active.parts > 0) continue;
    shared_->jobs.end(active.taken, DiskOutcome::io_error, "an I/O thread ended");
    active.taken.running.reset();
  }
  // Requests that will never be reaped use the queue's files and memory for ever.
  const bool leaks = queue_->in_flight() > 0;
  std::unique_ptr<IoQueue> queue;
  {
    std::lock_guard lock(mutex_);
    queue = std::move(queue_);
  }
  if (leaks) {
    static_cast<void>(queue.release());
    static_cast<void>(new std::shared_ptr<DiskShared>(shared_));
  }
  queue.reset();
  std::lock_guard lock(mutex_);
  ended_ = true, leaked_ = leaks;
  changed_.notify_all();
}

bool DiskWorker::open() {
  auto opened = open_io_queue(shared_->io, shared_->queue);
  std::lock_guard lock(mutex_);
  opened_ = true, ended_ = !opened.ok(), opening_ = opened.status();
  changed_.notify_all();
  if (!opened.ok()) return false;
  queue_ = std::move(opened->queue);
  name_ = queue_->name(), note_ = std::move(opened->note);
  active_.resize(2 * queue_->depth());
  for (std::size_t i = 0; i < active_.size(); ++i) unused_.push_back(i);
  return true;
}

Status DiskWorker::wait_open() {
  std::unique_lock lock(mutex_);
  changed_.wait(lock, [&] { return opened_; });
  return opening_;
}

bool DiskWorker::wait_ended(Clock::time_point deadline) {
  std::unique_lock lock(mutex_);
  return changed_.wait_until(lock, deadline, [&] { return ended_; });
}

bool DiskWorker::leaked() const {
  std::lock_guard lock(mutex_);
  return leaked_;
}

void DiskWorker::wake() {
  std::lock_guard lock(mutex_);
  if (queue_) queue_->wake();
}

void DiskWorker::serve() {
  constexpr std::chrono::seconds kIdle{3600};
  while (true) {
    const bool sent = send_next();
    if (!sent && ready_.empty() && queue_->in_flight() == 0 && shared_->jobs.closed()) return;
    results_.clear();
    queue_->reap(results_, sent || !ready_.empty() ? Clock::time_point() : Clock::now() + kIdle);
    for (const IoResult& result : results_) settle(result);
    strays_ = queue_->strays();
    if (!queue_->broken().ok()) return shared_->jobs.broke(queue_->broken().message());
    if (shared_->memory_ready) registered_bytes_ = queue_->memory_ready(shared_->memory_ready());
    // Checksums are for when the disk has all it can take.
    if (sent || ready_.empty()) continue;
    end(ready_.front());
    ready_.pop_front();
  }
}

// Puts more on its way; false: nothing to do until something has ended or come.
bool DiskWorker::send_next() {
  if (sending_ == kNone) take();  // also when the disk is busy: a record that is sealed by then can follow at once
  if (sending_ == kNone || queue_->room() == 0) return false;
  send(sending_);
  return true;
}

void DiskWorker::take() {
  if (unused_.empty()) return;
  // Half of the queue stays free of demotions, so that a promotion never waits for a row of writes.
  const bool demotions = demotions_ <= queue_->depth() / 2;
  DiskJobs::Taken taken;
  if (!shared_->jobs.take(demotions, taken)) return;
  sending_ = unused_.back();
  unused_.pop_back();
  active_[sending_] = Active{std::move(taken)};
  Active& active = active_[sending_];
  const DiskJob& job = active.taken.job();
  active.place = shared_->slab->plan().place_of(active.taken.record().disk_offset, job.slot_bytes);
  if (!writes(active.taken)) return;
  ++demotions_;
  seal_record(active.taken.record().memory, job.slot_bytes, shared_->owner, name_of(active.taken));
}

void DiskWorker::send(std::size_t index) {
  Active& active = active_[index];
  const DiskJob& job = active.taken.job();
  const IoKind kind = writes(active.taken) ? IoKind::write : IoKind::read;
  while (queue_->room() > 0 && active.sent_bytes < job.slot_bytes) {
    const std::int64_t bytes = std::min(shared_->request_bytes, job.slot_bytes - active.sent_bytes);
    const IoRequest request{kind,
                            active.place.file,
                            active.place.offset + active.sent_bytes,
                            active.taken.record().memory + active.sent_bytes,
                            bytes,
                            index};
    active.sent_bytes += bytes;
    ++active.parts;
    queue_->submit({&request, 1});
  }
  if (active.sent_bytes == job.slot_bytes) sending_ = kNone;
}

void DiskWorker::settle(const IoResult& result) {
  Active& active = active_[result.tag];
  --active.parts;
  active.done_bytes += result.bytes;
  if (result.error != 0) active.error = result.error;
  if (active.parts == 0 && sending_ != result.tag) ready_.push_back(result.tag);
}

void DiskWorker::end(std::size_t index) {
  Active& active = active_[index];
  std::string error;
  DiskOutcome outcome = DiskOutcome::done;
  if (active.error != 0) {
    outcome = DiskOutcome::io_error, error = errno_text(active.error);
  } else if (active.done_bytes < active.taken.job().slot_bytes) {
    outcome = DiskOutcome::cut_short, error = "the file ends inside the record";
  } else if (!writes(active.taken)) {
    outcome = verify(active.taken, error);
  }
  if (writes(active.taken)) {
    --demotions_;
    shared_->slab->written(active.place.file);
  }
  if (outcome == DiskOutcome::io_error || outcome == DiskOutcome::cut_short) {
    error = (writes(active.taken) ? "writing to " : "reading from ") + shared_->slab->paths()[active.place.file] +
            ": " + error;
  }
  shared_->jobs.end(active.taken, outcome, error);
  active.taken.running.reset();
  unused_.push_back(index);
}

DiskOutcome DiskWorker::verify(const DiskJobs::Taken& taken, std::string& error) const {
  with_faults(taken);
  switch (verify_record(taken.record().memory, taken.job().slot_bytes, shared_->owner, name_of(taken))) {
    case RecordState::valid:
      return DiskOutcome::done;
    case RecordState::checksum:
      error = "the checksum of a record is wrong";
      return DiskOutcome::checksum;
    case RecordState::identity:
      error = "a record is that of another key";
      return DiskOutcome::identity;
    case RecordState::stale:
      break;
  }
  error = "a record is an older one";
  return DiskOutcome::stale;
}

RecordName DiskWorker::name_of(const DiskJobs::Taken& taken) const {
  const DiskRecord& record = taken.record();
  return {taken.job().group, record.key, taken.job().payload_bytes, record.sequence, taken.job().epoch};
}

}  // namespace kvo
