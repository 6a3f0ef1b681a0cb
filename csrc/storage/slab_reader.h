// A rank's slab as its files say it is, for checks from outside. The caller sees to it that nobody writes there.
#pragma once
#include <array>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "base/status.h"
#include "base/unique_fd.h"
#include "storage/record.h"
#include "storage/slab_header.h"

namespace kvo {

// Of what lies in a slot. Past RecordState's: none: no record at all; unreadable: the disk fails, or the file ends.
enum class SlotState { valid, checksum, identity, stale, none, unreadable };
inline constexpr std::array kSlotStates = {"valid", "checksum", "identity", "stale", "none", "unreadable"};

class SlabReader {
 public:
  // One path for each directory of the option `disk`, in any order. invalid: why they are no slab. unsupported: some
  // are missing, or cannot be opened.
  static Result<std::unique_ptr<SlabReader>> open(const std::vector<std::string>& paths, bool writable);
  SlabReader(const SlabReader&) = delete;

  // `bytes` are as the files' length has it: with several directories a few slots more than there are.
  const SlabPlan& plan() const { return plan_; }
  const RecordOwner& owner() const { return owner_; }
  std::uint64_t identity() const { return identity_; }  // 0: new, or the files are not of one cache

  // Slots are named as in DiskRecord. One thread at a time.
  SlotState check(const RecordName& expected, std::int64_t disk_offset);  // payload_bytes: as its trailer says
  std::optional<RecordTrailer> trailer(int group, std::int64_t disk_offset) const;
  // The slot holds no record any more.
  Status erase(int group, std::int64_t disk_offset);
  Status sync();

 private:
  SlabReader() = default;
  Status add(const std::string& path, bool writable);
  Status take_plan(const SlabHeader& header, const std::string& path);
  // Whole, and in the slot of the group; the file and the offset in it.
  std::optional<SlabPlace> place_of(int group, std::int64_t disk_offset) const;

  SlabPlan plan_;
  RecordOwner owner_;
  std::uint64_t identity_ = 0;
  std::vector<UniqueFd> files_;
  std::vector<std::byte> slot_;
};

}  // namespace kvo
