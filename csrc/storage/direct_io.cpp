#include "storage/direct_io.h"

#include <fcntl.h>
#include <sys/stat.h>
#include <sys/vfs.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstdlib>
#include <cstring>
#include <iterator>
#include <memory>

#include "base/fault.h"
#include "base/file.h"
#include "base/mapped_region.h"
#include "base/unique_fd.h"
#include "storage/io_queue.h"

namespace kvo {
namespace {

constexpr const char* kProbeName = "probe";

struct Free {
  void operator()(void* memory) const { std::free(memory); }
};

std::string refused(const char* call) { return std::string(call) + " refuses it: " + errno_text(errno); }

// 4 KiB is what all our offsets and sizes are multiples of.
std::string why_not_aligned(int fd) {
#ifdef STATX_DIOALIGN
  struct statx status;
  if (statx(fd, "", AT_EMPTY_PATH, STATX_DIOALIGN, &status) != 0 || !(status.stx_mask & STATX_DIOALIGN)) return "";
  const auto align = std::max(status.stx_dio_mem_align, status.stx_dio_offset_align);
  if (align > kDiskAlign) return "it wants blocks of " + std::to_string(align) + " bytes";
#endif
  static_cast<void>(fd);
  return "";
}

// Some file systems accept the flag and refuse the write.
std::string why_not_written(int fd) {
  const std::unique_ptr<char, Free> memory(static_cast<char*>(std::aligned_alloc(kDiskAlign, 2 * kDiskAlign)));
  if (!memory) return "no memory to try it";
  char *out = memory.get(), *in = out + kDiskAlign;
  std::memset(out, 0x5a, kDiskAlign), std::memset(in, 0, kDiskAlign);
  if (pwrite(fd, out, kDiskAlign, kDiskAlign) != kDiskAlign) return refused("write");
  if (pread(fd, in, kDiskAlign, kDiskAlign) != kDiskAlign) return refused("read");
  return std::memcmp(out, in, kDiskAlign) == 0 ? "" : "it read back something else";
}

}  // namespace

std::string why_not_direct(int directory) {
  if (fault::fires("slab_direct")) return errno = EINVAL, refused("open");
  unlinkat(directory, kProbeName, 0);  // of a process that was killed here
  const UniqueFd fd(openat(directory, kProbeName, O_RDWR | O_CREAT | O_EXCL | O_DIRECT | O_NOFOLLOW | O_CLOEXEC, 0600));
  const int error = errno;
  unlinkat(directory, kProbeName, 0);
  if (!fd) return errno = error, refused("open");
  std::string why = why_not_aligned(fd.get());
  return why.empty() ? why_not_written(fd.get()) : why;
}

bool is_network_file_system(long type) {
  constexpr unsigned long kTypes[] = {
      0x6969,      // NFS
      0x517b,      // SMB
      0xff534d42,  // CIFS
      0xfe534d42,  // SMB 2
      0x65735546,  // FUSE, and virtiofs
      0x01021997,  // 9P
      0x00c36400,  // Ceph
      0x0bd00bd0,  // Lustre
      0x47504653,  // GPFS
      0x5346414f,  // AFS
      0x19830326,  // BeeGFS
  };
  const unsigned long masked = static_cast<unsigned long>(type) & 0xffffffff;
  return std::find(std::begin(kTypes), std::end(kTypes), masked) != std::end(kTypes);
}

Result<bool> on_network(int directory) {
  struct statfs status;
  if (fault::fires("slab_network")) return true;
  if (fstatfs(directory, &status) != 0) return file_error("look at", "the file system", errno);
  return is_network_file_system(status.f_type);
}

}  // namespace kvo
