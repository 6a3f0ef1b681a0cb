#include "base/namespace_dir.h"

#include <fcntl.h>
#include <sys/file.h>
#include <sys/stat.h>

#include <algorithm>
#include <cerrno>
#include <filesystem>
#include <optional>
#include <string_view>
#include <thread>
#include <tuple>

#include "base/file.h"

namespace kvo {
namespace {

namespace fs = std::filesystem;

constexpr std::string_view kMark = "kvoffload";  // a lock file of ours begins with it
constexpr std::string_view kLockName = "lock";
constexpr std::chrono::milliseconds kPoll{10};
constexpr std::int64_t kStatBlockBytes = 512;

// timeout: another process is removing what leads there; to be tried again.
Status failed(const char* verb, const std::string& path) {
  if (errno != ENOENT) return file_error(verb, path, errno);
  return Status(Code::timeout, path + " is just being removed by another process: try again");
}

Status make_private_directory(const std::string& path) {
  if (mkdir(path.c_str(), 0700) != 0 && errno != EEXIST) return failed("make", path);
  const UniqueFd fd(open(path.c_str(), O_RDONLY | O_DIRECTORY | O_NOFOLLOW | O_CLOEXEC));
  struct stat status;
  if (!fd || fstat(fd.get(), &status) != 0) return failed("open", path);
  if (status.st_uid != geteuid()) {
    return Status(Code::invalid, path + " belongs to user " + std::to_string(status.st_uid) +
                                     ", this process is user " + std::to_string(geteuid()) +
                                     ": choose another directory");
  }
  // Older ones may be open to others; what umask says does not matter.
  if ((status.st_mode & 0777) != 0700 && fchmod(fd.get(), 0700) != 0) return file_error("protect", path, errno);
  return {};
}

std::string lock_text(int fd) {
  char text[64] = {};
  const ssize_t got = pread(fd, text, sizeof text - 1, 0);
  return std::string(text, got > 0 ? got : 0);
}

std::string pid_of(int fd) {
  const std::string text = lock_text(fd);
  const auto digits = text.find_first_of("0123456789");
  return digits == std::string::npos ? "unknown"
                                     : text.substr(digits, text.find_first_not_of("0123456789", digits) - digits);
}

Result<UniqueFd> open_lock(const std::string& path, int more_flags) {
  UniqueFd fd(open(path.c_str(), O_RDWR | O_NOFOLLOW | O_CLOEXEC | O_NONBLOCK | more_flags, 0600));
  if (!fd) return failed("open", path);
  return fd;
}

// Whether the lock is had; not, too, when its file was removed before.
bool lock(int fd, int how) {
  struct stat status;
  return flock(fd, how | LOCK_NB) == 0 && fstat(fd, &status) == 0 && status.st_nlink > 0;
}

Status sign(int fd, const std::string& path) {
  const std::string text = std::string(kMark) + " " + std::to_string(getpid()) + "\n";
  if (ftruncate(fd, 0) != 0 || pwrite(fd, text.data(), text.size(), 0) != static_cast<ssize_t>(text.size()) ||
      fchmod(fd, 0600) != 0) {
    return file_error("write", path, errno);
  }
  return {};
}

bool is_name(std::string_view name, std::size_t least, std::size_t most) {
  return name.size() >= least && name.size() <= most && std::all_of(name.begin(), name.end(), [](char c) {
           return (c >= '0' && c <= '9') || (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z') || c == '-' || c == '_';
         });
}

std::vector<fs::path> entries_of(const fs::path& directory) {
  std::vector<fs::path> entries;
  std::error_code error;
  for (fs::directory_iterator entry(directory, error), end; !error && entry != end; entry.increment(error)) {
    entries.push_back(entry->path());
  }
  return entries;
}

std::int64_t bytes_of(const fs::path& path) {
  struct stat status;
  if (lstat(path.c_str(), &status) != 0) return 0;
  std::int64_t bytes = status.st_blocks * kStatBlockBytes;
  if (S_ISDIR(status.st_mode)) {
    for (const fs::path& entry : entries_of(path)) bytes += bytes_of(entry);
  }
  return bytes;
}

struct Unit {
  std::string path;
  bool same_fingerprint;
  std::int64_t opened_ns, bytes;
};

// The namespaces under `root` but `own`. What has no lock file of ours is somebody else's and not looked at.
std::vector<Unit> other_units(const std::string& root, const std::string& own) {
  std::vector<Unit> units;
  for (const fs::path& fingerprint : entries_of(root)) {
    if (fs::is_symlink(fs::symlink_status(fingerprint))) continue;
    for (const fs::path& unit : entries_of(fingerprint)) {
      if (unit == own || !unit.filename().string().starts_with("dp")) continue;
      if (fs::is_symlink(fs::symlink_status(unit))) continue;
      auto fd = open_lock(unit / kLockName, 0);
      struct stat status;
      if (!fd.ok() || !lock_text(fd->get()).starts_with(kMark) || fstat(fd->get(), &status) != 0) continue;
      const std::int64_t opened_ns = status.st_mtim.tv_sec * 1'000'000'000 + status.st_mtim.tv_nsec;
      units.push_back({unit, fingerprint == fs::path(own).parent_path(), opened_ns, bytes_of(unit)});
    }
  }
  std::sort(units.begin(), units.end(), [](const Unit& a, const Unit& b) {
    return std::tie(a.same_fingerprint, a.opened_ns) < std::tie(b.same_fingerprint, b.opened_ns);
  });
  return units;
}

// False: somebody uses it. Its lock goes last, so that whoever opens it meanwhile waits, and then makes it anew.
Result<bool> remove_unit(const fs::path& unit) {
  auto fd = open_lock(unit / kLockName, 0);
  if (!fd.ok()) return fd.status();
  if (!lock(fd->get(), LOCK_EX)) return false;
  std::error_code error;
  for (const fs::path& entry : entries_of(unit)) {
    if (entry.filename() != kLockName) fs::remove_all(entry, error);
    if (error) return file_error("remove", entry, error.value());
  }
  unlink((unit / kLockName).c_str());
  if (rmdir(unit.c_str()) == 0) rmdir(unit.parent_path().c_str());  // kept if somebody made something in it
  return true;
}

Result<UniqueFd> lock_unit(const fs::path& unit) {
  KVO_TRY(make_private_directory(unit.parent_path()));
  KVO_TRY(make_private_directory(unit));
  auto fd = open_lock(unit / kLockName, O_CREAT);
  if (!fd.ok()) return fd;
  if (!lock(fd->get(), LOCK_SH)) return errno = ENOENT, failed("lock", unit);
  KVO_TRY(sign(fd->get(), unit));  // its time is when the namespace was last opened
  return fd;
}

Result<UniqueFd> lock_leaf(const std::string& leaf) {
  KVO_TRY(make_private_directory(leaf));
  auto fd = open_lock(leaf + "/lock", O_CREAT);
  if (!fd.ok()) return fd;
  if (!lock(fd->get(), LOCK_EX)) {
    return Status(Code::invalid,
                  leaf + " is in use by process " + pid_of(fd->get()) + ": stop it, or choose another directory");
  }
  KVO_TRY(sign(fd->get(), leaf));
  return fd;
}

}  // namespace

NamespaceDir::Lock::~Lock() {
  if (fd && !owner.forked()) flock(fd.get(), LOCK_UN);
}

Result<NamespaceDir> NamespaceDir::open(const std::string& root, const std::string& fingerprint, int dp,
                                        const std::string& leaf, Deadline deadline) {
  if (!is_name(fingerprint, 8, 128) || !is_name(leaf, 1, 32) || leaf == kLockName || dp < 0) {
    return Status(Code::invalid, "fingerprint \"" + fingerprint + "\", dp " + std::to_string(dp) + ", \"" + leaf +
                                     "\" name no directory: letters, digits, - and _, 8 to 128 in a fingerprint");
  }
  NamespaceDir dir;
  dir.root_ = root;
  dir.unit_ = root + "/" + fingerprint + "/dp" + std::to_string(dp);
  dir.path_ = dir.unit_ + "/" + leaf;
  if (mkdir(root.c_str(), 0700) != 0 && errno != EEXIST) return file_error("make", root, errno);
  auto unit_lock = lock_unit(dir.unit_);
  while (unit_lock.status().code() == Code::timeout && std::chrono::steady_clock::now() < deadline) {
    std::this_thread::sleep_for(kPoll);
    unit_lock = lock_unit(dir.unit_);
  }
  if (!unit_lock.ok()) return unit_lock.status();
  auto leaf_lock = lock_leaf(dir.path_);
  if (!leaf_lock.ok()) return leaf_lock.status();
  dir.unit_lock_ = Lock(std::move(*unit_lock));
  dir.leaf_lock_ = Lock(std::move(*leaf_lock));
  return dir;
}

Result<NamespaceDir::Room> NamespaceDir::make_room(std::int64_t own_bytes, std::int64_t cap_bytes,
                                                   Deadline deadline) const {
  // One at a time: two that count the same namespaces would remove twice as many.
  auto root_lock = open_lock(root_ + "/kvoffload.lock", O_CREAT);
  if (!root_lock.ok()) return root_lock.status();
  while (!lock(root_lock->get(), LOCK_EX)) {
    if (std::chrono::steady_clock::now() >= deadline) {
      return Status(Code::timeout, "another process is making room in " + root_);
    }
    std::this_thread::sleep_for(kPoll);
  }
  Room room;
  const std::vector<Unit> units = other_units(root_, unit_);
  for (const Unit& unit : units) room.foreign_bytes += unit.bytes;
  for (const Unit& unit : units) {
    if (room.foreign_bytes <= cap_bytes - own_bytes) break;
    auto removed = remove_unit(unit.path);
    if (!removed.ok()) return removed.status();
    (*removed ? room.removed : room.in_use).push_back(unit.path);
    if (!*removed) continue;
    room.removed_bytes += unit.bytes;
    room.foreign_bytes -= unit.bytes;
  }
  return room;
}

}  // namespace kvo
