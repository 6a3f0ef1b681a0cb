#include "ledger/manifest_content.h"

#include <map>
#include <utility>

#include "ledger/manifest_replay.h"

namespace kvo {
namespace {

// Which commit holds each slot, by group and number.
using Live = std::map<std::pair<int, std::int64_t>, std::pair<CommittedChunk, std::int64_t>>;  // chunk, its offset

void apply(Live& live, const ManifestRecord& record, std::int64_t offset) {
  if (record.kind == RecordKind::commit) {
    live[{record.group, record.slot}] = {{std::string(record.key), record.group, record.slot, record.sequence}, offset};
  } else if (record.kind == RecordKind::free) {
    live.erase({record.group, record.slot});
  }
}

Result<ManifestHeader> read_header(File& file, const std::string& path) {
  HeaderBytes bytes;
  auto got = file.read(0, bytes.data(), sizeof bytes);
  if (!got.ok()) return got.status();
  auto header = decode_header(std::span(bytes).first(*got));
  if (header.ok()) return header;
  return Status(header.status().code(), path + ": " + header.status().message());
}

}  // namespace

Result<ManifestContent> read_manifest(const std::string& path, std::uint64_t boot, FileSystem& files) {
  auto file = files.open(path, OpenMode::read);
  if (!file.ok()) return file.status();
  if (!*file) return Status(Code::invalid, path + " is not there");
  auto size = (*file)->size();
  if (!size.ok()) return size.status();
  auto header = read_header(**file, path);
  if (!header.ok()) return header.status();

  ManifestContent content{.header = *header, .chunks = {}, .bytes = *size};
  ManifestReader reader(**file, header->salt, kManifestHeaderBytes, *size);
  Live live;
  std::int64_t offset = reader.offset(), synced_end = kManifestHeaderBytes;
  while (const std::optional<ManifestRecord> record = reader.next()) {
    if (record->kind == RecordKind::synced) synced_end = record->slot;
    apply(live, *record, offset);
    offset = reader.offset();
  }
  (reader.more_behind() ? content.damaged_bytes : content.torn_bytes) = *size - offset;
  const bool same_boot = header->boot == (boot != 0 ? boot : boot_number());
  for (auto& [slot, held] : live) {
    if (same_boot || held.second < synced_end) {
      content.chunks.push_back(std::move(held.first));
    } else {
      ++content.unsynced_chunks;
    }
  }
  return content;
}

}  // namespace kvo
