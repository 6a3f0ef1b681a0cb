// Anonymous private memory of whole pages, its start aligned by spending address space, never memory.
#pragma once
#include <cstddef>
#include <cstdint>

#include "base/status.h"

namespace kvo {

inline constexpr std::int64_t kPageBytes = 4096;

class MappedRegion {
 public:
  // memory: the kernel refuses the mapping. `alignment_bytes` is a power of two of at least a page.
  static Result<MappedRegion> reserve(std::int64_t bytes, std::int64_t alignment_bytes);
  MappedRegion(MappedRegion&& other) noexcept;
  MappedRegion& operator=(MappedRegion&&) = delete;
  ~MappedRegion() { unmap(); }

  std::byte* base() const { return base_; }
  std::int64_t bytes() const { return bytes_; }  // asked, rounded up to pages
  void discard(std::int64_t from);               // gives [from, bytes) back to the system; it reads as zeros again
  void unmap();
  void leak() { base_ = nullptr; }

 private:
  MappedRegion(std::byte* base, std::int64_t bytes) : base_(base), bytes_(bytes) {}
  std::byte* base_;
  std::int64_t bytes_;
};

// "Cannot allocate memory": errno's text, safe in any thread.
std::string errno_text(int error);

}  // namespace kvo
