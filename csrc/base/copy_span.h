// The words that everything which moves bytes shares.
#pragma once
#include <cstddef>
#include <cstdint>

namespace kvo {

// A caller's stream as its framework names it (cudaStream_t as an integer). 0 is CUDA's legacy default stream;
// on the host device 0 means "the calling thread".
using StreamHandle = std::uintptr_t;

enum class Direction { store, load };  // device to host, host to device

struct CopySpan {
  std::byte* dst;
  const std::byte* src;
  std::int64_t bytes;
};

}  // namespace kvo
