#include "storage/slab.h"

#include <fcntl.h>
#include <sys/stat.h>
#include <sys/statvfs.h>

#include <algorithm>
#include <cerrno>
#include <map>

#include "base/fault.h"
#include "base/file.h"
#include "base/mapped_region.h"
#include "storage/direct_io.h"
#include "storage/slab_header.h"

namespace kvo {
namespace {

constexpr const char* kName = "slab";
constexpr std::int64_t kStatBlockBytes = 512;

std::string path_in(const std::string& directory) { return directory + "/" + kName; }

Status check_network(int directory, const std::string& path, bool allowed) {
  auto network = on_network(directory);
  if (!network.ok()) return network.status();
  if (!*network || allowed) return {};
  return Status(
      Code::invalid,
      path + " is on a network file system or FUSE: choose a local directory, or allow it with disk_network=True");
}

Result<UniqueFd> open_slab(int directory, const std::string& path, bool direct) {
  if (fault::fires("slab_open")) return file_error("open", path, EIO);
  const int flags = O_RDWR | O_CREAT | O_NOFOLLOW | O_CLOEXEC | O_NONBLOCK | (direct ? O_DIRECT : 0);
  UniqueFd fd(openat(directory, kName, flags, 0600));
  struct stat status;
  if (!fd || fstat(fd.get(), &status) != 0) return file_error("open", path, errno);
  if (!S_ISREG(status.st_mode) || status.st_uid != geteuid()) {
    return Status(Code::invalid, "cannot open " + path + ": it is not a plain file of this user");
  }
  if (fchmod(fd.get(), 0600) != 0) return file_error("change the mode of", path, errno);
  return fd;
}

// 0, or errno. Blocks that are there already stay as they are.
int preallocate(int fd, std::int64_t bytes) {
  if (fault::fires("slab_enospc")) return static_cast<void>(fallocate(fd, 0, 0, bytes / 4 * 3)), ENOSPC;
  if (fault::fires("slab_fallocate")) return EOPNOTSUPP;
  while (fallocate(fd, 0, 0, bytes) != 0) {
    if (errno != EINTR) return errno;
  }
  return 0;
}

}  // namespace

Result<std::unique_ptr<Slab>> Slab::open(SlabOptions options) {
  if (options.directories.empty() || static_cast<int>(options.directories.size()) != options.plan.directories ||
      options.plan.bytes <= 0 || options.plan.extent_bytes <= 0) {
    return Status(Code::invalid, "a slab needs a directory and room for a slot: raise disk_size");
  }
  std::unique_ptr<Slab> slab(new Slab(std::move(options)));
  for (const std::string& directory : slab->options_.directories) KVO_TRY(slab->open_file(directory));
  KVO_TRY(slab->check_space());
  slab->read_headers();
  for (auto& file : slab->files_) KVO_TRY(slab->allocate(*file));
  KVO_TRY(slab->write_headers(slab->identity()));
  KVO_TRY(slab->measure());
  return slab;
}

Status Slab::open_file(const std::string& directory) {
  const UniqueFd folder(::open(directory.c_str(), O_RDONLY | O_DIRECTORY | O_NOFOLLOW | O_CLOEXEC));
  if (!folder) return file_error("open", directory, errno);
  KVO_TRY(check_network(folder.get(), directory, options_.network));
  const std::string why = why_not_direct(folder.get());
  if (!why.empty()) {
    report_.direct = false;
    report_.note += (report_.note.empty() ? "" : "; ") + directory + " is buffered, direct I/O does not work: " + why;
  }
  auto file = std::make_unique<File>();
  auto fd = open_slab(folder.get(), path_in(directory), why.empty());
  if (!fd.ok()) return fd.status();
  // Its name, too, survives a power cut. EINVAL: this file system syncs no directories.
  if (fsync(folder.get()) != 0 && errno != EINVAL) return file_error("sync", directory, errno);
  struct stat status;
  if (fstat(fd->get(), &status) != 0) return file_error("look at", path_in(directory), errno);
  file->directory = directory, file->fd = std::move(*fd), file->direct = why.empty();
  file->bytes_before = status.st_size, file->disk_bytes_before = status.st_blocks * kStatBlockBytes;
  files_.push_back(std::move(file));
  return {};
}

// Before anything is taken. Directories may share a file system.
Status Slab::check_space() const {
  struct Need {
    std::int64_t bytes = 0, available_bytes = 0;
    std::string directory;
  };
  std::map<dev_t, Need> needs;
  for (const auto& file : files_) {
    struct stat status;
    struct statvfs space;
    if (fstat(file->fd.get(), &status) != 0 || fstatvfs(file->fd.get(), &space) != 0) {
      return file_error("look at", file->directory, errno);
    }
    Need& need = needs[status.st_dev];
    need.bytes += std::max<std::int64_t>(options_.plan.file_bytes() - file->disk_bytes_before, 0);
    need.available_bytes = static_cast<std::int64_t>(space.f_bavail) * static_cast<std::int64_t>(space.f_frsize);
    need.directory = file->directory;
  }
  for (const auto& [device, need] : needs) {
    if (need.bytes <= need.available_bytes) continue;
    return Status(Code::invalid, "disk_size asks for " + human_bytes(options_.cap_bytes) + ", for which " +
                                     human_bytes(need.bytes) + " more are needed in " + need.directory + " and " +
                                     human_bytes(need.available_bytes) +
                                     " are available: lower disk_size, or free space there");
  }
  return {};
}

// Every block is ours from here on, or the file is as long as it was.
Status Slab::allocate(File& file) {
  const std::int64_t bytes = options_.plan.file_bytes();
  const std::string path = path_in(file.directory);
  if (file.bytes_before > bytes && ftruncate(file.fd.get(), bytes) != 0) return file_error("shorten", path, errno);
  const int error = preallocate(file.fd.get(), bytes);
  if (error == 0) return {};
  if (error == EOPNOTSUPP || error == ENOSYS) {
    report_.preallocated = false;
    report_.note += (report_.note.empty() ? "" : "; ") + path + " grows as it is written: no fallocate there";
    return ftruncate(file.fd.get(), bytes) == 0 ? Status() : file_error("lengthen", path, errno);
  }
  static_cast<void>(!ftruncate(file.fd.get(), std::min(file.bytes_before, bytes)));
  return Status(Code::invalid, "disk_size asks for " + human_bytes(options_.cap_bytes) + ", but " + path +
                                   " cannot have " + human_bytes(bytes) + ": " + errno_text(error));
}

void Slab::read_headers() {
  std::uint64_t identity = 0;
  for (std::size_t i = 0; i < files_.size(); ++i) {
    SlabHeader header;
    const bool whole = pread(files_[i]->fd.get(), &header, sizeof header, 0) == sizeof header;
    const bool same =
        whole && header.same_slab(slab_header(options_.plan, static_cast<int>(i), options_.rank, options_.fingerprint));
    if (i == 0 && same) identity = header.identity, tuning_ = header.tuning;
    if (!same || header.identity != identity) identity = 0;
  }
  identity_ = identity;
}

Status Slab::write_headers(std::uint64_t identity) {
  for (std::size_t i = 0; i < files_.size(); ++i) {
    SlabHeader header = slab_header(options_.plan, static_cast<int>(i), options_.rank, options_.fingerprint);
    header.identity = identity, header.tuning = tuning_;
    header.sign();
    const std::string path = path_in(files_[i]->directory);
    if (pwrite(files_[i]->fd.get(), &header, sizeof header, 0) != sizeof header)
      return file_error("write", path, errno);
    if (fdatasync(files_[i]->fd.get()) != 0) return file_error("sync", path, errno);
  }
  return {};
}

Status Slab::set_identity(std::uint64_t identity) {
  KVO_TRY(write_headers(identity));
  identity_ = identity;
  return {};
}

Status Slab::set_tuning(const DiskTuning& tuning) {
  tuning_ = tuning;
  return write_headers(identity());
}

Status Slab::measure() {
  report_.disk_bytes = 0;
  for (const auto& file : files_) {
    struct stat status;
    if (fstat(file->fd.get(), &status) != 0) return file_error("look at", file->directory, errno);
    report_.disk_bytes += status.st_blocks * kStatBlockBytes;
  }
  if (report_.disk_bytes <= options_.cap_bytes) return {};
  return Status(Code::invalid, "the slab takes " + human_bytes(report_.disk_bytes) + " on disk, disk_size allows " +
                                   human_bytes(options_.cap_bytes) +
                                   ": the file system is too fragmented, raise disk_size a little");
}

Status Slab::sync() {
  for (const auto& file : files_) {
    if (!file->unsynced.exchange(false)) continue;
    const bool failed = fault::fires("slab_sync");
    if (!failed && fdatasync(file->fd.get()) == 0) continue;
    file->unsynced = true;
    return file_error("sync", path_in(file->directory), failed ? EIO : errno);
  }
  return {};
}

std::vector<int> Slab::files() const {
  std::vector<int> files;
  for (const auto& file : files_) files.push_back(file->fd.get());
  return files;
}

std::vector<std::string> Slab::paths() const {
  std::vector<std::string> paths;
  for (const auto& file : files_) paths.push_back(path_in(file->directory));
  return paths;
}

}  // namespace kvo
