// The manifest's bytes: one header, then records (docs/file-format.md). Little endian, every record checksummed.
#pragma once
#include <array>
#include <cstddef>
#include <cstdint>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "base/status.h"

namespace kvo {

inline constexpr std::uint32_t kManifestVersion = 1;
inline constexpr std::size_t kManifestHeaderBytes = 512;
inline constexpr std::size_t kMostFingerprintBytes = 384;
inline constexpr std::size_t kMostManifestKeyBytes = 1024;

struct ManifestHeader {
  std::string fingerprint;         // all that bytes and slot numbers depend on
  std::uint64_t identity = 0;      // of the cache: what lies in slabs of another identity was never committed here
  std::uint64_t salt = 0;          // of this file: a record of another file, or moved in this one, does not verify
  std::uint64_t boot = 0;          // of the machine while this file was written
  std::int64_t epoch = 1;          // of every record
  std::int64_t next_sequence = 1;  // above all sequences of the files before this one
};

using HeaderBytes = std::array<std::byte, kManifestHeaderBytes>;
HeaderBytes encode(const ManifestHeader& header);
// Not ok: why nothing in this file is believed.
Result<ManifestHeader> decode_header(std::span<const std::byte> bytes);

enum class RecordKind : std::uint16_t {
  commit = 1,  // the key's bytes are complete in this slot on every rank
  free = 2,    // the slot holds nothing to be believed
  synced = 3,  // the data of all commits that end at or before offset `slot` is on the medium
};

struct ManifestRecord {
  RecordKind kind;
  std::int32_t group;
  std::int64_t slot, sequence;
  std::string_view key;

  std::int64_t bytes() const;
};

inline constexpr std::int64_t kMostRecordBytes = 32 + static_cast<std::int64_t>(kMostManifestKeyBytes);

// Appends the record as it lies at `offset` of the file with `salt`.
void encode(const ManifestRecord& record, std::uint64_t salt, std::int64_t offset, std::vector<std::byte>& out);
// What `bytes`, read from `offset`, begin with; its key points into them. Empty: no whole, valid record.
std::optional<ManifestRecord> decode_record(std::span<const std::byte> bytes, std::uint64_t salt, std::int64_t offset);

}  // namespace kvo
