#include "base/mapped_region.h"

#include <sys/mman.h>

#include <cerrno>
#include <system_error>

#include "base/fault.h"
#include "base/units.h"

namespace kvo {

std::string errno_text(int error) { return std::generic_category().message(error); }

Result<MappedRegion> MappedRegion::reserve(std::int64_t asked_bytes, std::int64_t alignment_bytes) {
  const auto refused = [&](int error) {
    return Status(Code::memory, "the kernel refuses to map " + human_bytes(asked_bytes) + ": " + errno_text(error) +
                                    " (address space limit: ulimit -v, vm.overcommit_memory)");
  };
  // No process has 2^47 bytes of address space; sizes beyond would overflow the sums below.
  if (asked_bytes > (std::int64_t{1} << 47) || fault::fires("mmap")) return refused(ENOMEM);
  const std::int64_t bytes = round_up(asked_bytes, kPageBytes);
  const std::int64_t span_bytes = bytes + alignment_bytes - kPageBytes;
  // NORESERVE: the kernel's overcommit guess compares with a total that may be far too low on a virtual machine whose
  // memory grows as it is used; what may be taken is checked by the caller, against limits that hold.
  void* span = mmap(nullptr, span_bytes, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
  if (span == MAP_FAILED) return refused(errno);
  const auto start = reinterpret_cast<std::int64_t>(span);
  const std::int64_t aligned = round_up(start, alignment_bytes);
  if (aligned > start) munmap(span, aligned - start);
  const std::int64_t tail_bytes = start + span_bytes - (aligned + bytes);
  if (tail_bytes > 0) munmap(reinterpret_cast<void*>(aligned + bytes), tail_bytes);
  MappedRegion region(reinterpret_cast<std::byte*>(aligned), bytes);
  if (mprotect(region.base_, bytes, PROT_READ | PROT_WRITE) != 0) return refused(errno);
  return region;
}

MappedRegion::MappedRegion(MappedRegion&& other) noexcept : base_(other.base_), bytes_(other.bytes_) { other.leak(); }

void MappedRegion::discard(std::int64_t from) {
  if (base_ != nullptr && from < bytes_) madvise(base_ + from, bytes_ - from, MADV_DONTNEED);
}

void MappedRegion::unmap() {
  if (base_ != nullptr) munmap(base_, bytes_);
  base_ = nullptr;
}

}  // namespace kvo
