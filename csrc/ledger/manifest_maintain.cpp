// The part of the log that waits for the medium.
#include <exception>

#include "ledger/manifest_log.h"

namespace kvo {

namespace {

Status call(const std::function<Status()>& sync_data) try {
  return sync_data ? sync_data() : Status();
} catch (const std::exception& error) {
  return Status(Code::unsupported, error.what());
}

}  // namespace

Status ManifestLog::maintain() {
  std::unique_lock lock(mutex_, std::defer_lock);
  if (due()) {
    const Status status = compact();
    lock.lock();
    ++(status.ok() ? stats_.compactions : stats_.failed_compactions);
    if (!status.ok()) {
      stats_.failure = status.message();
      compact_at_ = end_ + options_.compact_bytes;  // not again at once
      if (!closed_) static_cast<void>(options_.files->remove(new_path()));
    }
    lock.unlock();
  }
  const Status status = sync();
  lock.lock();
  const bool off = !stats_.off.empty();
  lock.unlock();
  const Status removed = off ? remove() : Status();  // if that fails, the next round tries again
  return removed.ok() ? status : removed;
}

Status ManifestLog::sync() {
  std::int64_t end, records;
  {
    std::lock_guard lock(mutex_);
    if (!stats_.off.empty()) return Status(Code::unsupported, stats_.off);
    if (appended_ == durable_) return {};
    end = end_;
    records = appended_;
  }
  // The mark tells which commits have their data on the medium: later ones may get there with this sync as well.
  const Status data = call(options_.sync_data);
  std::unique_lock lock(mutex_);
  if (data.ok()) {
    const ManifestRecord mark{RecordKind::synced, 0, end, 0, {}};
    if (Status status = write({&mark, 1}); !status.ok()) turn_off(status.message());
  }
  if (!data.ok() || !stats_.off.empty()) {
    ++stats_.failed_syncs;
    stats_.failure = data.ok() ? stats_.off : data.message();
    return Status(Code::unsupported, stats_.failure);
  }
  lock.unlock();
  const Status status = file_->sync();
  lock.lock();
  ++(status.ok() ? stats_.syncs : stats_.failed_syncs);
  // After a failed sync nobody knows what is on the medium, and the next one may say that all is well.
  if (!status.ok()) turn_off(status.message());
  if (status.ok()) durable_ = records;
  return status;
}

Status ManifestLog::compact() {
  ManifestHeader header;
  std::int64_t copied;
  {
    std::lock_guard lock(mutex_);
    header = header_;
    copied = end_;
  }
  File& old = *file_;
  const std::uint64_t old_salt = header.salt;
  const ManifestScan scan = scan_manifest(old, header, options_.slots, copied);
  if (scan.end != copied) return Status(Code::unsupported, path() + " is damaged at byte " + std::to_string(scan.end));
  auto fresh = create(header);
  if (!fresh.ok()) return fresh.status();
  ManifestWriter writer(**fresh, header.salt, kManifestHeaderBytes);
  KVO_TRY(copy_live(old, old_salt, scan, writer, [](const ManifestRecord&) {}));
  KVO_TRY(writer.flush());
  KVO_TRY((*fresh)->sync());
  // What was appended meanwhile is not durable in the old file either. Most of it outside the lock.
  const std::int64_t tail_end = stats().bytes;
  KVO_TRY(copy_tail(old, old_salt, copied, tail_end, writer));
  std::unique_lock lock(mutex_);
  if (!stats_.off.empty()) return Status(Code::unsupported, stats_.off);
  KVO_TRY(copy_tail(old, old_salt, tail_end, end_, writer));
  KVO_TRY(writer.flush());
  return publish(lock, header, std::move(*fresh), writer.offset());
}

Status ManifestLog::reset(std::int64_t epochs) {
  ManifestHeader header;
  {
    std::lock_guard lock(mutex_);
    header = header_;
  }
  header.epoch += epochs;
  const auto begin = [&]() -> Status {
    auto fresh = create(header);
    if (!fresh.ok()) return fresh.status();
    KVO_TRY((*fresh)->sync());
    std::unique_lock lock(mutex_);
    durable_ = appended_;  // all of it is over
    name_none();
    return publish(lock, header, std::move(*fresh), kManifestHeaderBytes);
  };
  const Status status = begin();
  if (status.ok() || status.code() == Code::closed) return status;
  {
    std::lock_guard lock(mutex_);
    header_.epoch = header.epoch;
    turn_off(status.message());
  }
  return remove();
}

// An open file without a name takes no more commits to be believed; it is replaced by the next reset().
Status ManifestLog::remove() {
  {
    std::lock_guard lock(mutex_);
    if (removed_) return {};
    KVO_TRY(options_.files->remove(path()));  // frees no blocks yet: the file is open
  }
  KVO_TRY(options_.files->sync_directory(options_.directory));
  std::lock_guard lock(mutex_);
  removed_ = true;
  return {};
}

}  // namespace kvo
