#include "ledger/manifest_replay.h"

#include <algorithm>

#include "base/units.h"

namespace kvo {

constexpr std::int64_t kWindowBytes = MiB;

bool ManifestReader::refill() {
  window_start_ = offset();
  used_ = 0;
  window_.resize(std::max<std::int64_t>(std::min(kWindowBytes, end_ - window_start_), 0));
  auto read = file_.read(window_start_, window_.data(), static_cast<std::int64_t>(window_.size()));
  window_.resize(read.ok() ? *read : 0);  // what cannot be read is damage: nothing from here on is believed
  return !window_.empty();
}

std::optional<ManifestRecord> ManifestReader::here() {
  if (static_cast<std::int64_t>(window_.size() - used_) < kMostRecordBytes && offset() < end_ && !refill()) return {};
  return decode_record(std::span<const std::byte>(window_).subspan(used_), salt_, offset());
}

std::optional<ManifestRecord> ManifestReader::next() {
  const std::optional<ManifestRecord> record = here();
  if (record) used_ += record->bytes();
  return record;
}

bool ManifestReader::more_behind() {
  while (offset() < end_) {
    used_ = std::min(used_ + 8, window_.size());
    if (here()) return true;
    if (used_ >= window_.size() && !refill()) return false;
  }
  return false;
}

Status ManifestWriter::add(const ManifestRecord& record) {
  encode(record, salt_, offset(), buffer_);
  return static_cast<std::int64_t>(buffer_.size()) < kWindowBytes ? Status() : flush();
}

Status ManifestWriter::flush() {
  KVO_TRY(file_.write(offset_, buffer_.data(), static_cast<std::int64_t>(buffer_.size())));
  offset_ = offset();
  buffer_.clear();
  return {};
}

LiveSlots::LiveSlots(const std::vector<std::int64_t>& slots) {
  for (const std::int64_t count : slots) offsets_.emplace_back(count);
}

bool LiveSlots::fits(const ManifestRecord& record) const {
  return record.group >= 0 && record.group < static_cast<int>(offsets_.size()) && record.slot >= 0 &&
         record.slot < static_cast<std::int64_t>(offsets_[record.group].size());
}

void LiveSlots::apply(const ManifestRecord& record, std::int64_t offset) {
  if (fits(record)) offsets_[record.group][record.slot] = record.kind == RecordKind::commit ? offset : 0;
}

bool LiveSlots::holds(const ManifestRecord& record, std::int64_t offset) const {
  return record.kind == RecordKind::commit && fits(record) && offsets_[record.group][record.slot] == offset;
}

std::int64_t LiveSlots::drop_from(std::int64_t offset) {
  std::int64_t dropped = 0;
  for (std::vector<std::int64_t>& group : offsets_) {
    for (std::int64_t& held : group) {
      if (held < offset) continue;
      held = 0;
      ++dropped;
    }
  }
  return dropped;
}

ManifestScan scan_manifest(File& file, const ManifestHeader& header, const std::vector<std::int64_t>& slots,
                           std::int64_t end) {
  ManifestScan scan{.live = LiveSlots(slots), .next_sequence = header.next_sequence};
  ManifestReader reader(file, header.salt, kManifestHeaderBytes, end);
  while (const std::optional<ManifestRecord> record = reader.next()) {
    if (record->kind == RecordKind::synced) {
      scan.synced_end = record->slot;
    } else {
      scan.live.apply(*record, scan.end);
      scan.next_sequence = std::max(scan.next_sequence, record->sequence + 1);
      scan.over_cap_commits += record->kind == RecordKind::commit && !scan.live.fits(*record);
    }
    scan.end = reader.offset();
  }
  scan.damaged = reader.more_behind();
  return scan;
}

Status copy_live(File& from, std::uint64_t salt, const ManifestScan& scan, ManifestWriter& to,
                 const std::function<void(const ManifestRecord&)>& each) {
  ManifestReader reader(from, salt, kManifestHeaderBytes, scan.end);
  bool marked = false;
  for (std::int64_t offset = reader.offset(); offset < scan.end; offset = reader.offset()) {
    if (!marked && offset >= scan.synced_end) {
      KVO_TRY(to.add({RecordKind::synced, 0, to.offset(), 0, {}}));
      marked = true;
    }
    const std::optional<ManifestRecord> record = reader.next();
    if (!record) return Status(Code::unsupported, "the manifest cannot be read a second time");
    if (!scan.live.holds(*record, offset)) continue;
    KVO_TRY(to.add(*record));
    each(*record);
  }
  return marked ? Status() : to.add({RecordKind::synced, 0, to.offset(), 0, {}});
}

Status copy_tail(File& from, std::uint64_t salt, std::int64_t begin, std::int64_t end, ManifestWriter& to) {
  ManifestReader reader(from, salt, begin, end);
  while (const std::optional<ManifestRecord> record = reader.next()) {
    if (record->kind != RecordKind::synced) KVO_TRY(to.add(*record));
  }
  if (reader.offset() == end) return {};
  return Status(Code::unsupported, "the manifest is damaged at byte " + std::to_string(reader.offset()));
}

}  // namespace kvo
