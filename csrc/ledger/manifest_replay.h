// Reading a manifest: which commits of a file are to be believed, and copying these to another file.
#pragma once
#include <cstdint>
#include <functional>
#include <optional>
#include <vector>

#include "base/file.h"
#include "ledger/manifest_record.h"

namespace kvo {

// The records of [begin, end) in order, as far as they are valid.
class ManifestReader {
 public:
  ManifestReader(File& file, std::uint64_t salt, std::int64_t begin, std::int64_t end)
      : file_(file), salt_(salt), window_start_(begin), end_(end) {}

  // Its key lives until the next call. Empty: the end, bytes that are no record, or a failed read.
  std::optional<ManifestRecord> next();
  std::int64_t offset() const { return window_start_ + static_cast<std::int64_t>(used_); }  // of the next record
  // After next() was empty: whether a valid record follows somewhere, so that this is damage and no torn tail.
  bool more_behind();

 private:
  std::optional<ManifestRecord> here();
  bool refill();  // the window begins at offset() and has bytes

  File& file_;
  const std::uint64_t salt_;
  std::vector<std::byte> window_;
  std::int64_t window_start_;
  std::size_t used_ = 0;
  const std::int64_t end_;
};

class ManifestWriter {
 public:
  ManifestWriter(File& file, std::uint64_t salt, std::int64_t offset) : file_(file), salt_(salt), offset_(offset) {}
  Status add(const ManifestRecord& record);
  Status flush();
  std::int64_t offset() const { return offset_ + static_cast<std::int64_t>(buffer_.size()); }

 private:
  File& file_;
  const std::uint64_t salt_;
  std::int64_t offset_;
  std::vector<std::byte> buffer_;
};

// Per group and slot: the offset of the commit that holds it.
class LiveSlots {
 public:
  explicit LiveSlots(const std::vector<std::int64_t>& slots);
  bool fits(const ManifestRecord& record) const;
  void apply(const ManifestRecord& record, std::int64_t offset);  // commit or free
  bool holds(const ManifestRecord& record, std::int64_t offset) const;
  std::int64_t drop_from(std::int64_t offset);  // commits there and later; how many

 private:
  std::vector<std::vector<std::int64_t>> offsets_;  // 0: none
};

struct ManifestScan {
  LiveSlots live;
  std::int64_t end = kManifestHeaderBytes;         // of the valid records
  std::int64_t synced_end = kManifestHeaderBytes;  // commits up to here have their data on the medium
  std::int64_t next_sequence = 1;
  std::int64_t over_cap_commits = 0;  // of slots that are no more
  bool damaged = false;               // there are records behind `end`
};

// `slots`: how many there are, per group. Reads [header, end).
ManifestScan scan_manifest(File& file, const ManifestHeader& header, const std::vector<std::int64_t>& slots,
                           std::int64_t end);

// Adds the live commits of `from` to `to`, oldest first, with a mark where those whose data is on the medium end.
Status copy_live(File& from, std::uint64_t salt, const ManifestScan& scan, ManifestWriter& to,
                 const std::function<void(const ManifestRecord&)>& each);
// Adds all commits and frees of [begin, end) to `to`. invalid: they are damaged.
Status copy_tail(File& from, std::uint64_t salt, std::int64_t begin, std::int64_t end, ManifestWriter& to);

}  // namespace kvo
