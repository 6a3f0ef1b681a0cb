#include "ledger/manifest_log.h"

#include <sys/random.h>

#include <algorithm>
#include <charconv>
#include <cstdio>
#include <limits>
#include <utility>

namespace kvo {
namespace {

// A file that waits for its compaction may grow by this many times compact_bytes: a million commits by default.
constexpr std::int64_t kBurst = 16;
constexpr std::int64_t kFreeBytes = 32;  // a record without a key

std::uint64_t random_word() {
  std::uint64_t word = 0;
  while (getrandom(&word, sizeof word, 0) != sizeof word) {
  }
  return word;
}

ManifestOptions completed(ManifestOptions options) {
  if (options.boot == 0) options.boot = boot_number();
  if (options.most_bytes > 0) options.compact_bytes = std::min(options.compact_bytes, options.most_bytes / 16);
  return options;
}

}  // namespace

std::uint64_t boot_number() {
  std::uint64_t boot = random_word();
  if (const auto file = std::unique_ptr<std::FILE, int (*)(std::FILE*)>(
          std::fopen("/proc/sys/kernel/random/boot_id", "re"), std::fclose)) {
    char text[40] = {};
    std::string digits(text, std::fread(text, 1, sizeof text - 1, file.get()));
    std::erase(digits, '-');
    std::from_chars(digits.data(), digits.data() + std::min<std::size_t>(digits.size(), 16), boot, 16);
  }
  return boot;
}

ManifestLog::ManifestLog(ManifestOptions options) : options_(completed(std::move(options))) { name_none(); }

void ManifestLog::name_none() {
  named_.clear();
  for (const std::int64_t slots : options_.slots) named_.emplace_back(static_cast<std::size_t>(slots));
}

Result<std::unique_ptr<ManifestLog>> ManifestLog::open(ManifestOptions options) {
  if (options.fingerprint.size() > kMostFingerprintBytes) {
    return Status(Code::invalid, "the fingerprint has " + std::to_string(options.fingerprint.size()) +
                                     " bytes, a manifest takes at most " + std::to_string(kMostFingerprintBytes));
  }
  std::unique_ptr<ManifestLog> log(new ManifestLog(std::move(options)));
  KVO_TRY(log->load());
  return log;
}

Status ManifestLog::load() {
  KVO_TRY(options_.files->remove(new_path()));
  auto old = options_.files->open(path(), OpenMode::existing);
  if (!old.ok()) return old.status();
  ManifestHeader header{.fingerprint = options_.fingerprint, .identity = random_word()};
  std::optional<ManifestScan> scan;
  if (*old && (scan = read(**old))) {
    header = header_;
    header.next_sequence = scan->next_sequence;
  }
  auto fresh = create(header);
  if (!fresh.ok()) return fresh.status();
  ManifestWriter writer(**fresh, header.salt, kManifestHeaderBytes);
  if (scan) {
    KVO_TRY(copy_live(**old, header_.salt, *scan, writer, [&](const ManifestRecord& record) {
      opening_.chunks.push_back({std::string(record.key), record.group, record.slot, record.sequence});
      named_[record.group][record.slot] = true;
    }));
  }
  KVO_TRY(writer.flush());
  KVO_TRY((*fresh)->sync());
  first_sequence_ = header.next_sequence;
  std::unique_lock lock(mutex_);
  if (scan && scan->end > scan->synced_end) appended_ = 1;  // so that the first sync is not skipped
  return publish(lock, header, std::move(*fresh), writer.offset());
}

std::optional<ManifestScan> ManifestLog::read(File& old) {
  auto size = old.size();
  HeaderBytes bytes;
  auto got = old.read(0, bytes.data(), sizeof bytes);
  Result<ManifestHeader> header = !size.ok()  ? Result<ManifestHeader>(size.status())
                                  : !got.ok() ? Result<ManifestHeader>(got.status())
                                              : decode_header(std::span(bytes).first(*got));
  if (header.ok() && header->fingerprint != options_.fingerprint) {
    header = Status(Code::invalid, "it is of other content: fingerprint " + header->fingerprint);
  }
  if (!header.ok()) {
    opening_.not_believed = path() + " is replaced, all it named is a miss: " + header.status().message();
    return {};
  }
  header_ = *header;
  ManifestScan scan = scan_manifest(old, header_, options_.slots, *size);
  (scan.damaged ? opening_.damaged_bytes : opening_.torn_bytes) = *size - scan.end;
  opening_.over_cap_commits = scan.over_cap_commits;
  if (header_.boot != options_.boot) opening_.unsynced_chunks = scan.live.drop_from(scan.synced_end);
  if (scan.damaged) {
    opening_.not_believed = path() + " is damaged at byte " + std::to_string(scan.end) + ": the " +
                            std::to_string(*size - scan.end) + " bytes from there on are not believed";
  }
  return scan;
}

Result<std::unique_ptr<File>> ManifestLog::create(ManifestHeader& header) {
  {
    std::lock_guard lock(mutex_);
    if (closed_) return Status(Code::closed, "the manifest is closed");
  }
  header.salt = random_word();
  header.boot = options_.boot;
  auto file = options_.files->open(new_path(), OpenMode::empty);
  if (!file.ok()) return file.status();
  const HeaderBytes bytes = encode(header);
  KVO_TRY((*file)->write(0, bytes.data(), sizeof bytes));
  return file;
}

Status ManifestLog::publish(std::unique_lock<std::mutex>& lock, const ManifestHeader& header,
                            std::unique_ptr<File> fresh, std::int64_t end) {
  if (closed_) return Status(Code::closed, "the manifest is closed");
  KVO_TRY(options_.files->rename(new_path(), path()));
  file_.swap(fresh);
  header_ = header;
  end_ = end;
  set_limits();
  stats_.off.clear();
  removed_ = false;
  lock.unlock();
  fresh.reset();  // outside the lock: the last close of a file that has no name frees its blocks
  Status status = options_.files->sync_directory(options_.directory);
  lock.lock();
  // Which of the two files comes back after a power cut is not known: neither may.
  if (!status.ok()) turn_off(status.message());
  return status;
}

// A file that replaces one is never longer than that, so half of what both may have is the most.
void ManifestLog::set_limits() {
  compact_at_ = 2 * end_ + options_.compact_bytes;
  most_bytes_ = 2 * compact_at_ + kBurst * options_.compact_bytes;
  commits_end_ = std::numeric_limits<std::int64_t>::max();
  if (options_.most_bytes == 0) return;
  most_bytes_ = std::min(most_bytes_, options_.most_bytes / 2);
  std::int64_t frees_bytes = 0;  // of all that can be named, each with a mark of its own
  for (const std::int64_t slots : options_.slots) frees_bytes += slots * 2 * kFreeBytes;
  commits_end_ = most_bytes_ - std::min(frees_bytes, most_bytes_ / 2);
  compact_at_ = std::max(std::min(compact_at_, commits_end_ / 4 * 3), end_ + options_.compact_bytes / 4);
}

void ManifestLog::free(int group, std::span<const std::int64_t> slots) {
  std::lock_guard lock(mutex_);
  records_.clear();
  for (const std::int64_t slot : slots) add({RecordKind::free, group, slot, 0, {}});
  append();
}

void ManifestLog::commit(std::int64_t epoch, int group, std::span<const ManifestCommit> commits) {
  std::lock_guard lock(mutex_);
  if (epoch != header_.epoch) {
    stats_.stale_commits += static_cast<std::int64_t>(commits.size());
    return;
  }
  records_.clear();
  std::int64_t end = end_;
  for (const ManifestCommit& chunk : commits) {
    end += kFreeBytes + round_up(static_cast<std::int64_t>(chunk.key.size()), 8);
    if (end > commits_end_)
      ++stats_.dropped_records;
    else
      add({RecordKind::commit, group, chunk.slot, chunk.sequence, chunk.key});
  }
  append();
}

void ManifestLog::add(const ManifestRecord& record) {
  const bool slot_exists = record.group >= 0 && record.group < static_cast<int>(options_.slots.size()) &&
                           record.slot >= 0 && record.slot < options_.slots[record.group];
  if (!slot_exists || record.key.size() > kMostManifestKeyBytes) {
    ++stats_.dropped_records;
    return;
  }
  auto named = named_[record.group][record.slot];
  if (record.kind == RecordKind::free && !named) return;  // there is nothing to take back
  named = record.kind == RecordKind::commit;
  records_.push_back(record);
  header_.next_sequence = std::max(header_.next_sequence, record.sequence + 1);
}

void ManifestLog::append() {
  const auto count = static_cast<std::int64_t>(records_.size());
  if (count > 0 && stats_.off.empty()) {
    if (const Status status = write(records_); !status.ok()) turn_off(status.message());
  }
  if (!stats_.off.empty()) {
    stats_.dropped_records += count;
    return;
  }
  appended_ += count;
  for (const ManifestRecord& record : records_) ++(record.kind == RecordKind::commit ? stats_.commits : stats_.frees);
}

Status ManifestLog::write(std::span<const ManifestRecord> records) {
  buffer_.clear();
  for (const ManifestRecord& record : records) {
    encode(record, header_.salt, end_ + static_cast<std::int64_t>(buffer_.size()), buffer_);
  }
  const auto bytes = static_cast<std::int64_t>(buffer_.size());
  if (end_ + bytes > most_bytes_) return Status(Code::unsupported, "it has grown too long: " + stats_.failure);
  KVO_TRY(file_->write(end_, buffer_.data(), bytes));
  end_ += bytes;
  return {};
}

void ManifestLog::turn_off(const std::string& why) {
  stats_.off = "the manifest is off, after a restart everything on disk is a miss: " + why;
  stats_.failure = why;
}

void ManifestLog::close() {
  std::lock_guard lock(mutex_);
  closed_ = removed_ = true;
  if (stats_.off.empty()) stats_.off = "the manifest is closed";
}

bool ManifestLog::due() const {
  std::lock_guard lock(mutex_);
  return stats_.off.empty() && end_ >= compact_at_;
}

ManifestStats ManifestLog::stats() const {
  std::lock_guard lock(mutex_);
  ManifestStats stats = stats_;
  stats.bytes = end_;
  stats.epoch = header_.epoch;
  stats.undurable_records = appended_ - durable_;
  return stats;
}

}  // namespace kvo
