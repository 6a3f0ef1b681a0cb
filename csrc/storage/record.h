// A record is a slot's bytes as they lie on disk: payload, zeros, and a trailer at the very end that says whose payload
// it is and holds a checksum of all before it (docs/file-format.md). What does not verify is a miss.
#pragma once
#include <cstddef>
#include <cstdint>
#include <optional>
#include <span>
#include <string>
#include <string_view>

#include "base/status.h"

namespace kvo {

inline constexpr std::int64_t kRecordTrailerBytes = 512;
inline constexpr std::size_t kMostRecordKeyBytes = 256, kMostRecordFingerprintBytes = 128;

// What all records of one slab share.
struct RecordOwner {
  std::string fingerprint;  // of all that changes the bytes
  int rank = 0;
};

struct RecordName {
  int group = 0;
  std::string_view key;
  std::int64_t payload_bytes = 0;
  std::int64_t sequence = 0, epoch = 0;  // sequence 0, in what is expected: any
};

// What a trailer says, believed or not.
struct RecordTrailer {
  RecordOwner owner;
  int group = 0;
  std::string key;
  std::int64_t payload_bytes = 0, sequence = 0, epoch = 0;

  RecordName name() const { return {group, key, payload_bytes, sequence, epoch}; }
};

enum class RecordState { valid, checksum, identity, stale };  // stale: of an earlier epoch, or an earlier record

Status check_name(const RecordOwner& owner, const RecordName& name);

// Zeroes what lies between payload and trailer and writes the trailer. `name` passes check_name().
void seal_record(std::byte* slot, std::int64_t slot_bytes, const RecordOwner& owner, const RecordName& name);
RecordState verify_record(const std::byte* slot, std::int64_t slot_bytes, const RecordOwner& owner,
                          const RecordName& expected);

// Of the last bytes of a slot. Empty: there is none. Only verify_record() says whether it is right.
std::optional<RecordTrailer> read_trailer(std::span<const std::byte, kRecordTrailerBytes> end, std::int64_t slot_bytes);

}  // namespace kvo
