#include "storage/record.h"

#include <algorithm>
#include <bit>
#include <cstring>

#include "base/crc32c.h"

namespace kvo {
namespace {

static_assert(std::endian::native == std::endian::little);

struct Trailer {
  char magic[8];
  std::uint32_t version;
  std::int32_t group, rank;
  std::uint16_t fingerprint_bytes, key_bytes;
  std::int64_t sequence, epoch, payload_bytes;
  std::uint32_t cipher, zero;  // 0: the payload is as it is
  std::uint8_t salt[24], tag[16];
  char fingerprint[kMostRecordFingerprintBytes], key[kMostRecordKeyBytes];
  std::uint8_t zeros[28];
  std::uint32_t crc;  // of all before it, the payload included
};
static_assert(sizeof(Trailer) == kRecordTrailerBytes && offsetof(Trailer, crc) == 508);

constexpr char kMagic[] = "KVORECRD";
constexpr std::int64_t kCrcBytes = sizeof(Trailer::crc);

Trailer trailer_of(const RecordOwner& owner, const RecordName& name) {
  Trailer trailer{};
  std::copy_n(kMagic, sizeof trailer.magic, trailer.magic);
  trailer.version = 1, trailer.group = name.group, trailer.rank = owner.rank;
  trailer.fingerprint_bytes = static_cast<std::uint16_t>(owner.fingerprint.size());
  trailer.key_bytes = static_cast<std::uint16_t>(name.key.size());
  trailer.sequence = name.sequence, trailer.epoch = name.epoch, trailer.payload_bytes = name.payload_bytes;
  std::copy(owner.fingerprint.begin(), owner.fingerprint.end(), trailer.fingerprint);
  std::copy(name.key.begin(), name.key.end(), trailer.key);
  return trailer;
}

std::uint32_t checksum(const std::byte* slot, std::int64_t slot_bytes) {
  return crc32c(slot, static_cast<std::size_t>(slot_bytes - kCrcBytes));
}

}  // namespace

Status check_name(const RecordOwner& owner, const RecordName& name) {
  if (owner.fingerprint.size() > kMostRecordFingerprintBytes || name.key.size() > kMostRecordKeyBytes) {
    return Status(Code::invalid, "a record has a fingerprint of at most 128 bytes and a key of at most 256, not " +
                                     std::to_string(owner.fingerprint.size()) + " and " +
                                     std::to_string(name.key.size()));
  }
  return {};
}

void seal_record(std::byte* slot, std::int64_t slot_bytes, const RecordOwner& owner, const RecordName& name) {
  std::byte* end = slot + slot_bytes - kRecordTrailerBytes;
  std::fill(slot + name.payload_bytes, end, std::byte{0});  // what the slot held before is nobody's business
  const Trailer trailer = trailer_of(owner, name);
  std::memcpy(end, &trailer, sizeof trailer);
  const std::uint32_t crc = checksum(slot, slot_bytes);
  std::memcpy(slot + slot_bytes - kCrcBytes, &crc, sizeof crc);
}

RecordState verify_record(const std::byte* slot, std::int64_t slot_bytes, const RecordOwner& owner,
                          const RecordName& expected) {
  Trailer found;
  std::memcpy(&found, slot + slot_bytes - kRecordTrailerBytes, sizeof found);
  if (found.crc != checksum(slot, slot_bytes)) return RecordState::checksum;
  Trailer wanted = trailer_of(owner, expected);
  const bool old = found.epoch != wanted.epoch || (wanted.sequence != 0 && found.sequence != wanted.sequence);
  wanted.sequence = found.sequence, wanted.epoch = found.epoch, wanted.crc = found.crc;
  if (std::memcmp(&found, &wanted, sizeof found) != 0) return RecordState::identity;
  return old ? RecordState::stale : RecordState::valid;
}

std::optional<RecordTrailer> read_trailer(std::span<const std::byte, kRecordTrailerBytes> end,
                                          std::int64_t slot_bytes) {
  Trailer found;
  std::memcpy(&found, end.data(), sizeof found);
  if (std::memcmp(found.magic, kMagic, sizeof found.magic) != 0 || found.version != 1 || found.payload_bytes < 0 ||
      found.payload_bytes > slot_bytes - kRecordTrailerBytes || found.fingerprint_bytes > kMostRecordFingerprintBytes ||
      found.key_bytes > kMostRecordKeyBytes) {
    return {};
  }
  return RecordTrailer{{std::string(found.fingerprint, found.fingerprint_bytes), found.rank},
                       found.group,
                       std::string(found.key, found.key_bytes),
                       found.payload_bytes,
                       found.sequence,
                       found.epoch};
}

}  // namespace kvo
