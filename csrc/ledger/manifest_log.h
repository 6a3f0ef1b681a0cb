// The manifest's file: what is appended, made durable, compacted and begun anew. No thread of its own (manifest.h has
// it): append calls may come from any thread and never wait for the medium; maintain() and reset() do and are for one
// thread.
//
// The file is always replaced as a whole by one that was complete on the medium before: on open, when it has grown too
// long, and for a new epoch. So there is no state between two files, and an old epoch is gone with its file.
#pragma once
#include <functional>
#include <memory>
#include <mutex>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "base/file.h"
#include "base/units.h"
#include "ledger/manifest_replay.h"

namespace kvo {

struct ManifestOptions {
  std::string directory;            // private, and nobody else has its lock
  std::string fingerprint;          // all that bytes and slot numbers depend on; another one's manifest is replaced
  std::vector<std::int64_t> slots;  // per group; commits of slots beyond are dropped on open
  // Puts the data of all commits that were appended before the call on the medium. Called by the maintaining thread,
  // so it must outlive the manifest, or share what it uses. Empty: data is on the medium when it is committed.
  std::function<Status()> sync_data;
  double sync_seconds = 0.5;             // between two syncs; durable is at most this and one sync later
  std::int64_t compact_bytes = 4 * MiB;  // rewritten when it has doubled and grown by this
  // The file and the one that takes its place never have more together; 0: no limit. Where that is little,
  // compact_bytes is less, and where compaction does not keep up commits are dropped: their keys a miss after a
  // restart.
  std::int64_t most_bytes = 0;
  std::uint64_t boot = 0;  // 0: the system's
  FileSystem* files = &real_files();
};

struct CommittedChunk {
  std::string key;
  int group;
  std::int64_t slot, sequence;
};

struct ManifestCommit {
  std::string_view key;
  std::int64_t slot, sequence;
};

// What was found on open.
struct ManifestOpening {
  std::vector<CommittedChunk> chunks;  // in the order of their commits: of two with one key the later counts
  std::string not_believed;            // for one log line; empty: all was well
  std::int64_t torn_bytes = 0, damaged_bytes = 0;
  std::int64_t unsynced_chunks = 0;  // the machine went down before their data was on the medium
  std::int64_t over_cap_commits = 0;
};

struct ManifestStats {
  std::int64_t bytes = 0, epoch = 0, commits = 0, frees = 0;
  std::int64_t stale_commits = 0;    // of an epoch that is over
  std::int64_t dropped_records = 0;  // the manifest is off or has no room, or there is no such slot
  std::int64_t undurable_records = 0;
  std::int64_t syncs = 0, failed_syncs = 0, compactions = 0, failed_compactions = 0;
  std::string off;      // why nothing is written any more: after a restart all is a miss. Empty: it is on
  std::string failure;  // the last one, also of what is tried again
};

// Another number after every start of the machine. Where there is none to be had, every call has one of its own.
std::uint64_t boot_number();

class ManifestLog {
 public:
  static Result<std::unique_ptr<ManifestLog>> open(ManifestOptions options);
  ManifestLog(const ManifestLog&) = delete;

  ManifestOpening& opening() { return opening_; }
  std::uint64_t identity() const { return header_.identity; }
  std::int64_t first_sequence() const { return first_sequence_; }

  // Any thread; committed when it returns.
  void free(int group, std::span<const std::int64_t> slots);
  void commit(std::int64_t epoch, int group, std::span<const ManifestCommit> commits);
  // Nothing is appended and no file replaced from here on: the next owner's manifest is safe from a maintaining thread
  // that the medium has held up.
  void close();
  ManifestStats stats() const;
  bool due() const;  // it should be compacted

  // One thread. After maintain() all that was appended before is durable, or the Status says why not.
  Status maintain();
  Status reset(std::int64_t epochs = 1);  // after it the epoch that many later is durable

 private:
  explicit ManifestLog(ManifestOptions options);

  std::string path() const { return options_.directory + "/manifest"; }
  std::string new_path() const { return path() + ".new"; }
  void name_none();
  void set_limits();  // with the lock held, of a file that is new
  Status load();
  // What of `old` is believed; empty: nothing.
  std::optional<ManifestScan> read(File& old);
  // The header gets a salt of its own.
  Result<std::unique_ptr<File>> create(ManifestHeader& header);
  // The new file, complete on the medium up to its first sync, takes the place of the old one.
  Status publish(std::unique_lock<std::mutex>& lock, const ManifestHeader& header, std::unique_ptr<File> fresh,
                 std::int64_t end);
  Status sync();
  Status compact();
  Status remove();

  // With the lock held.
  void add(const ManifestRecord& record);
  void append();
  Status write(std::span<const ManifestRecord> records);
  void turn_off(const std::string& why);

  const ManifestOptions options_;
  ManifestOpening opening_;
  std::int64_t first_sequence_ = 1;

  mutable std::mutex mutex_;  // of all that follows
  ManifestHeader header_;
  std::unique_ptr<File> file_;  // replaced by the maintaining thread alone
  std::int64_t end_ = 0;
  std::int64_t compact_at_ = 0, most_bytes_ = 0, commits_end_ = 0;  // commits_end_: from here on only frees
  std::int64_t appended_ = 0, durable_ = 0;                         // records
  bool closed_ = false;
  bool removed_ = false;                  // of a manifest that is off: its file is gone
  std::vector<std::vector<bool>> named_;  // per group and slot: the file has a commit that counts
  std::vector<ManifestRecord> records_;   // of the call in hand
  std::vector<std::byte> buffer_;
  ManifestStats stats_;
};

}  // namespace kvo
