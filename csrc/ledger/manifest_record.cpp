#include "ledger/manifest_record.h"

#include <bit>
#include <cstring>

#include "base/crc32c.h"
#include "base/units.h"

namespace kvo {
namespace {

static_assert(std::endian::native == std::endian::little, "the format is little endian");

constexpr char kMagic[] = "KVOMANIF";

struct HeaderLayout {
  char magic[8];
  std::uint32_t version, crc;  // of the whole header with this field zero
  std::uint64_t identity, salt, boot;
  std::int64_t epoch, next_sequence;
  std::uint32_t fingerprint_bytes, reserved;
  char fingerprint[kMostFingerprintBytes];
  char padding[64];
};
static_assert(sizeof(HeaderLayout) == kManifestHeaderBytes);

struct RecordLayout {
  std::uint32_t crc;  // of salt, offset and all that follows this field
  std::uint16_t kind, key_bytes;
  std::int32_t group;
  std::uint32_t reserved;
  std::int64_t slot, sequence;
};
static_assert(sizeof(RecordLayout) == 32);

std::int64_t record_bytes(std::size_t key_bytes) {
  return round_up(static_cast<std::int64_t>(sizeof(RecordLayout) + key_bytes), 8);
}

std::uint32_t record_crc(const std::byte* record, std::int64_t bytes, std::uint64_t salt, std::int64_t offset) {
  const std::uint64_t place[2] = {salt, static_cast<std::uint64_t>(offset)};
  return crc32c(record + sizeof(std::uint32_t), bytes - sizeof(std::uint32_t), crc32c(place, sizeof place));
}

}  // namespace

HeaderBytes encode(const ManifestHeader& header) {
  HeaderLayout layout{};
  std::memcpy(layout.magic, kMagic, sizeof layout.magic);
  layout.version = kManifestVersion;
  layout.identity = header.identity;
  layout.salt = header.salt;
  layout.boot = header.boot;
  layout.epoch = header.epoch;
  layout.next_sequence = header.next_sequence;
  layout.fingerprint_bytes = static_cast<std::uint32_t>(header.fingerprint.size());
  std::memcpy(layout.fingerprint, header.fingerprint.data(), header.fingerprint.size());
  layout.crc = crc32c(&layout, sizeof layout);
  return std::bit_cast<HeaderBytes>(layout);
}

Result<ManifestHeader> decode_header(std::span<const std::byte> bytes) {
  const auto refused = [](std::string why) { return Status(Code::invalid, std::move(why)); };
  HeaderLayout layout;
  if (bytes.size() < sizeof layout) return refused("it is too short");
  std::memcpy(&layout, bytes.data(), sizeof layout);
  if (std::memcmp(layout.magic, kMagic, sizeof layout.magic) != 0) return refused("it is no manifest");
  if (layout.version != kManifestVersion) {
    return refused("it is of format version " + std::to_string(layout.version) + ", this build writes " +
                   std::to_string(kManifestVersion));
  }
  const std::uint32_t crc = layout.crc;
  layout.crc = 0;
  if (crc32c(&layout, sizeof layout) != crc || layout.fingerprint_bytes > kMostFingerprintBytes) {
    return refused("its header is damaged");
  }
  ManifestHeader header;
  header.fingerprint.assign(layout.fingerprint, layout.fingerprint_bytes);
  header.identity = layout.identity;
  header.salt = layout.salt;
  header.boot = layout.boot;
  header.epoch = layout.epoch;
  header.next_sequence = layout.next_sequence;
  return header;
}

std::int64_t ManifestRecord::bytes() const { return record_bytes(key.size()); }

void encode(const ManifestRecord& record, std::uint64_t salt, std::int64_t offset, std::vector<std::byte>& out) {
  const RecordLayout layout{.crc = 0,
                            .kind = static_cast<std::uint16_t>(record.kind),
                            .key_bytes = static_cast<std::uint16_t>(record.key.size()),
                            .group = record.group,
                            .reserved = 0,
                            .slot = record.slot,
                            .sequence = record.sequence};
  const std::size_t start = out.size();
  out.resize(start + record.bytes());  // with zeros
  std::byte* bytes = out.data() + start;
  std::memcpy(bytes, &layout, sizeof layout);
  if (!record.key.empty()) std::memcpy(bytes + sizeof layout, record.key.data(), record.key.size());
  const std::uint32_t crc = record_crc(bytes, record.bytes(), salt, offset);
  std::memcpy(bytes, &crc, sizeof crc);
}

std::optional<ManifestRecord> decode_record(std::span<const std::byte> bytes, std::uint64_t salt, std::int64_t offset) {
  RecordLayout layout;
  if (bytes.size() < sizeof layout) return {};
  std::memcpy(&layout, bytes.data(), sizeof layout);
  // Cheap tests first: a search for records behind damage comes here for every eighth byte.
  if (layout.kind < 1 || layout.kind > 3 || layout.key_bytes > kMostManifestKeyBytes) return {};
  const std::int64_t length = record_bytes(layout.key_bytes);
  if (static_cast<std::int64_t>(bytes.size()) < length) return {};
  if (record_crc(bytes.data(), length, salt, offset) != layout.crc) return {};
  const auto* key = reinterpret_cast<const char*>(bytes.data() + sizeof layout);
  return ManifestRecord{static_cast<RecordKind>(layout.kind), layout.group, layout.slot, layout.sequence,
                        std::string_view(key, layout.key_bytes)};
}

}  // namespace kvo
