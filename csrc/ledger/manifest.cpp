#include "ledger/manifest.h"

#include <algorithm>
#include <condition_variable>
#include <exception>
#include <system_error>
#include <thread>

namespace kvo {

// What the thread shares with the calls that wait for it.
struct Manifest::Worker {
  // A request is done when the thread has begun and ended a round after it was made.
  struct Request {
    std::int64_t asked = 0, done = 0;
    Status status;
    bool pending() const { return asked > done; }
  };

  explicit Worker(std::unique_ptr<ManifestLog> owned, double seconds)
      : log(std::move(owned)), sync_seconds(std::clamp(seconds, 0.001, 60.0)) {}

  void run() noexcept;
  Status round(std::int64_t epochs) noexcept;
  Status ask(Request& request, Deadline deadline, const char* what);
  void wake_if_due();

  const std::unique_ptr<ManifestLog> log;
  const std::chrono::duration<double> sync_seconds;
  std::mutex mutex;  // of all that follows
  std::condition_variable changed;
  Request flush, reset;
  bool stop = false, stopped = false, due = false;
  std::thread thread;  // of the Manifest alone
};

void Manifest::Worker::run() noexcept {
  std::unique_lock lock(mutex);
  for (bool last = false; !last;) {
    changed.wait_for(lock, sync_seconds, [&] { return stop || due || flush.pending() || reset.pending(); });
    due = false;
    last = stop;
    const std::int64_t flushes = flush.asked, resets = reset.asked;
    const std::int64_t epochs = resets - reset.done;  // one for each call, also where a hanging disk let them pile up
    lock.unlock();
    Status status = epochs > 0 ? round(epochs) : Status();
    Status synced = round(0);
    lock.lock();
    if (epochs > 0) reset.status = std::move(status);
    reset.done = resets;
    flush.status = std::move(synced);
    flush.done = flushes;
    stopped = last;
    changed.notify_all();
  }
}

Status Manifest::Worker::round(std::int64_t epochs) noexcept try {
  return epochs > 0 ? log->reset(epochs) : log->maintain();
} catch (const std::exception& error) {
  return Status(Code::memory, error.what());
}

Status Manifest::Worker::ask(Request& request, Deadline deadline, const char* what) {
  std::unique_lock lock(mutex);
  if (stop) return Status(Code::closed, std::string("the manifest is closed: no ") + what);
  const std::int64_t ticket = ++request.asked;
  changed.notify_all();
  if (changed.wait_until(lock, deadline, [&] { return request.done >= ticket; })) return request.status;
  return Status(Code::timeout, std::string(what) + " of the manifest did not end in time: the disk holds it up");
}

Result<std::unique_ptr<Manifest>> Manifest::open(ManifestOptions options) try {
  const double sync_seconds = options.sync_seconds;
  auto log = ManifestLog::open(std::move(options));
  if (!log.ok()) return log.status();
  auto worker = std::make_shared<Worker>(std::move(*log), sync_seconds);
  std::unique_ptr<Manifest> manifest(new Manifest(worker));
  worker->thread = std::thread([worker] { worker->run(); });
  return manifest;
} catch (const std::system_error& error) {
  return Status(Code::unsupported, std::string("cannot start the thread of the manifest: ") + error.what());
}

Manifest::~Manifest() {
  if (!owner_.forked()) static_cast<void>(close(std::chrono::steady_clock::now() + std::chrono::seconds(5)));
}

Status Manifest::close(Deadline deadline) {
  std::unique_lock lock(worker_->mutex);
  worker_->stop = true;
  worker_->changed.notify_all();
  std::thread thread = std::move(worker_->thread);
  if (!thread.joinable()) return {};
  const bool stopped = worker_->changed.wait_until(lock, deadline, [&] { return worker_->stopped; });
  Status status = worker_->flush.status;
  lock.unlock();
  stopped ? thread.join() : thread.detach();  // it shares all it uses
  worker_->log->close();
  if (stopped) return status;
  return Status(Code::timeout, "the disk holds up the last sync of the manifest: what was just committed may be lost");
}

ManifestOpening Manifest::take_opening() { return std::move(worker_->log->opening()); }
std::uint64_t Manifest::identity() const { return worker_->log->identity(); }
std::int64_t Manifest::first_sequence() const { return worker_->log->first_sequence(); }

void Manifest::Worker::wake_if_due() {
  if (!log->due()) return;
  std::lock_guard lock(mutex);
  due = true;
  changed.notify_all();
}

void Manifest::free(int group, std::span<const std::int64_t> slots) {
  worker_->log->free(group, slots);
  worker_->wake_if_due();
}

void Manifest::commit(std::int64_t epoch, int group, std::span<const ManifestCommit> commits) {
  worker_->log->commit(epoch, group, commits);
  worker_->wake_if_due();
}

Status Manifest::reset(Deadline deadline) { return worker_->ask(worker_->reset, deadline, "reset"); }
Status Manifest::flush(Deadline deadline) { return worker_->ask(worker_->flush, deadline, "flush"); }
ManifestStats Manifest::stats() const { return worker_->log->stats(); }

}  // namespace kvo
