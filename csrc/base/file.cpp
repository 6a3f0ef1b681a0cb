#include "base/file.h"

#include <fcntl.h>
#include <sys/stat.h>

#include <cerrno>
#include <cstdio>

#include "base/fault.h"
#include "base/mapped_region.h"
#include "base/unique_fd.h"

namespace kvo {
namespace {

class RealFile final : public File {
 public:
  RealFile(UniqueFd fd, std::string path) : fd_(std::move(fd)), path_(std::move(path)) {}

  Result<std::int64_t> size() override {
    struct stat status;
    if (fstat(fd_.get(), &status) != 0) return file_error("look at", path_, errno);
    return std::int64_t{status.st_size};
  }

  Result<std::int64_t> read(std::int64_t offset, void* into, std::int64_t bytes) override {
    std::int64_t done = 0;
    while (done < bytes) {
      const ssize_t got = pread(fd_.get(), static_cast<char*>(into) + done, bytes - done, offset + done);
      if (got < 0 && errno == EINTR) continue;
      if (got < 0 && done == 0) return file_error("read", path_, errno);
      if (got <= 0) break;
      done += got;
    }
    return done;
  }

  Status write(std::int64_t offset, const void* from, std::int64_t bytes) override {
    if (fault::fires("file_write")) return file_error("write", path_, ENOSPC);
    for (std::int64_t done = 0; done < bytes;) {
      const ssize_t put = pwrite(fd_.get(), static_cast<const char*>(from) + done, bytes - done, offset + done);
      if (put < 0 && errno == EINTR) continue;
      if (put <= 0) return file_error("write", path_, put < 0 ? errno : EIO);
      done += put;
    }
    return {};
  }

  Status sync() override {
    if (fault::fires("file_sync")) return file_error("sync", path_, EIO);
    while (fdatasync(fd_.get()) != 0) {
      if (errno != EINTR) return file_error("sync", path_, errno);
    }
    return {};
  }

 private:
  UniqueFd fd_;
  std::string path_;
};

class RealFiles final : public FileSystem {
 public:
  Result<std::unique_ptr<File>> open(const std::string& path, OpenMode mode) override {
    if (fault::fires("file_open")) return file_error("open", path, EIO);
    const bool reads = mode == OpenMode::read;
    const int flags = mode == OpenMode::empty ? O_RDWR | O_CREAT | O_TRUNC : reads ? O_RDONLY : O_RDWR;
    // NONBLOCK: a planted pipe must not hold us up.
    UniqueFd fd(::open(path.c_str(), flags | O_CLOEXEC | O_NOFOLLOW | O_NONBLOCK, 0600));
    if (!fd) {
      if (errno == ENOENT && mode != OpenMode::empty) return std::unique_ptr<File>();
      return file_error("open", path, errno);
    }
    struct stat status;
    if (fstat(fd.get(), &status) != 0) return file_error("look at", path, errno);
    if (!S_ISREG(status.st_mode)) return Status(Code::invalid, "cannot open " + path + ": it is not a plain file");
    // Whatever umask and earlier owners of the name left.
    if (!reads && fchmod(fd.get(), 0600) != 0) return file_error("change the mode of", path, errno);
    return std::unique_ptr<File>(new RealFile(std::move(fd), path));
  }

  Status rename(const std::string& from, const std::string& to) override {
    if (fault::fires("file_rename")) return file_error("replace", to, EIO);
    if (std::rename(from.c_str(), to.c_str()) == 0) return {};
    return file_error("replace", to, errno);
  }

  Status remove(const std::string& path) override {
    if (unlink(path.c_str()) == 0 || errno == ENOENT) return {};
    return file_error("remove", path, errno);
  }

  Status sync_directory(const std::string& path) override {
    UniqueFd fd(::open(path.c_str(), O_RDONLY | O_DIRECTORY | O_CLOEXEC));
    // EINVAL: some file systems sync no directories; there names are durable at once or not at all.
    if (!fd || (fsync(fd.get()) != 0 && errno != EINVAL)) return file_error("sync", path, errno);
    return {};
  }
};

}  // namespace

FileSystem& real_files() {
  static RealFiles files;
  return files;
}

Status file_error(const char* verb, const std::string& path, int error) {
  return Status(Code::unsupported, std::string("cannot ") + verb + " " + path + ": " + errno_text(error));
}

}  // namespace kvo
