#include "storage/slab_reader.h"

#include <fcntl.h>
#include <sys/stat.h>

#include <algorithm>
#include <cerrno>
#include <utility>

#include "base/file.h"

namespace kvo {
namespace {

constexpr int kMostDirectories = 1024;
constexpr std::int64_t kMostExtentBytes = std::int64_t{1} << 48;

Status no_slab(const std::string& path, const std::string& why) { return Status(Code::invalid, path + ": " + why); }

// Before any arithmetic with it.
bool plausible(const SlabHeader& header) {
  if (header.extent_bytes <= 0 || header.extent_bytes > kMostExtentBytes || header.directories < 1 ||
      header.directories > kMostDirectories || header.index < 0 || header.index >= header.directories ||
      header.groups < 1 || header.groups > static_cast<int>(kMostSlabGroups) ||
      header.fingerprint_bytes > sizeof header.fingerprint) {
    return false;
  }
  return std::all_of(header.slot_bytes, header.slot_bytes + header.groups, [&](std::int64_t bytes) {
    return bytes >= kSlabHeaderBytes && bytes % kSlabHeaderBytes == 0 && bytes <= header.extent_bytes;
  });
}

bool read_all(int fd, std::byte* into, std::int64_t bytes, std::int64_t offset) {
  for (std::int64_t done = 0; done < bytes;) {
    const ssize_t got = pread(fd, into + done, bytes - done, offset + done);
    if (got < 0 && errno == EINTR) continue;
    if (got <= 0) return false;
    done += got;
  }
  return true;
}

SlotState state_of(RecordState state) {
  switch (state) {
    case RecordState::valid:
      return SlotState::valid;
    case RecordState::checksum:
      return SlotState::checksum;
    case RecordState::identity:
      return SlotState::identity;
    case RecordState::stale:
      break;
  }
  return SlotState::stale;
}

}  // namespace

Result<std::unique_ptr<SlabReader>> SlabReader::open(const std::vector<std::string>& paths, bool writable) {
  std::unique_ptr<SlabReader> reader(new SlabReader);
  for (const std::string& path : paths) KVO_TRY(reader->add(path, writable));
  const auto given = static_cast<int>(paths.size());
  if (given == 0 || given != reader->plan_.directories) {
    return Status(Code::unsupported, (paths.empty() ? "a slab" : paths.front()) + " is one of " +
                                         std::to_string(reader->plan_.directories) + " files in as many directories, " +
                                         std::to_string(given) + " are there: give all directories of the cache");
  }
  return reader;
}

Status SlabReader::add(const std::string& path, bool writable) {
  UniqueFd fd(::open(path.c_str(), (writable ? O_RDWR : O_RDONLY) | O_NOFOLLOW | O_CLOEXEC | O_NONBLOCK));
  struct stat status;
  if (!fd || fstat(fd.get(), &status) != 0) return file_error("open", path, errno);
  if (!S_ISREG(status.st_mode)) return no_slab(path, "it is not a plain file");
  SlabHeader header;
  if (!read_all(fd.get(), reinterpret_cast<std::byte*>(&header), sizeof header, 0)) {
    return no_slab(path, "it is too short");
  }
  KVO_TRY(take_plan(header, path));
  const std::int64_t stripe = header.stripe_bytes, bytes = std::max<std::int64_t>(status.st_size - kSlabHeaderBytes, 0);
  const std::int64_t rest = std::min(plan_.extent_bytes, bytes % stripe * plan_.directories);
  plan_.bytes = std::max(plan_.bytes, bytes / stripe * plan_.extent_bytes + rest);
  files_[header.index] = std::move(fd);
  return {};
}

Status SlabReader::take_plan(const SlabHeader& header, const std::string& path) {
  if (!plausible(header)) return no_slab(path, "its header is damaged, or of another version");
  SlabPlan plan{0, header.extent_bytes, {header.slot_bytes, header.slot_bytes + header.groups}, header.directories};
  const std::string fingerprint(header.fingerprint, header.fingerprint_bytes);
  if (!header.same_slab(slab_header(plan, header.index, header.rank, fingerprint))) {
    return no_slab(path, "its header is damaged, or of another version");
  }
  if (files_.empty()) {
    plan_ = std::move(plan), owner_ = {fingerprint, header.rank}, identity_ = header.identity;
    files_.resize(header.directories);
  } else if (files_.size() != static_cast<std::size_t>(header.directories) || files_[header.index] ||
             plan.extent_bytes != plan_.extent_bytes || plan.slot_bytes != plan_.slot_bytes ||
             header.rank != owner_.rank || fingerprint != owner_.fingerprint) {
    return no_slab(path, "it does not belong to the others");
  } else if (header.identity != identity_) {
    identity_ = 0;
  }
  return {};
}

std::optional<SlabPlace> SlabReader::place_of(int group, std::int64_t disk_offset) const {
  if (group < 0 || static_cast<std::size_t>(group) >= plan_.slot_bytes.size() || disk_offset < 0 ||
      disk_offset > plan_.bytes - plan_.slot_bytes[group]) {
    return {};
  }
  return plan_.place_of(disk_offset, plan_.slot_bytes[group]);
}

SlotState SlabReader::check(const RecordName& expected, std::int64_t disk_offset) {
  const auto place = place_of(expected.group, disk_offset);
  if (!place) return SlotState::unreadable;
  const std::int64_t bytes = plan_.slot_bytes[expected.group];
  slot_.resize(bytes);
  const int fd = files_[place->file].get();
  const bool whole = read_all(fd, slot_.data(), bytes, place->offset);
  posix_fadvise(fd, place->offset, bytes, POSIX_FADV_DONTNEED);  // a check of it all should not drive out what is used
  if (!whole) return SlotState::unreadable;
  const auto trailer = read_trailer(std::span(slot_).last<kRecordTrailerBytes>(), bytes);
  if (!trailer) return SlotState::none;
  RecordName name = expected;
  name.payload_bytes = trailer->payload_bytes;
  if (!check_name(owner_, name).ok()) return SlotState::identity;  // no record has such a key
  return state_of(verify_record(slot_.data(), bytes, owner_, name));
}

std::optional<RecordTrailer> SlabReader::trailer(int group, std::int64_t disk_offset) const {
  const auto place = place_of(group, disk_offset);
  if (!place) return {};
  const std::int64_t bytes = plan_.slot_bytes[group];
  std::array<std::byte, kRecordTrailerBytes> end;
  if (!read_all(files_[place->file].get(), end.data(), kRecordTrailerBytes,
                place->offset + bytes - kRecordTrailerBytes)) {
    return {};
  }
  return read_trailer(end, bytes);
}

Status SlabReader::erase(int group, std::int64_t disk_offset) {
  const auto place = place_of(group, disk_offset);
  if (!place) return Status(Code::invalid, "there is no slot at " + std::to_string(disk_offset));
  const std::array<std::byte, kRecordTrailerBytes> zeros{};
  const std::int64_t end = place->offset + plan_.slot_bytes[group] - kRecordTrailerBytes;
  const ssize_t put = pwrite(files_[place->file].get(), zeros.data(), zeros.size(), end);
  return put == static_cast<ssize_t>(zeros.size()) ? Status() : file_error("write", "the slab", put < 0 ? errno : EIO);
}

Status SlabReader::sync() {
  for (const UniqueFd& fd : files_) {
    if (fdatasync(fd.get()) != 0) return file_error("sync", "the slab", errno);
  }
  return {};
}

}  // namespace kvo
