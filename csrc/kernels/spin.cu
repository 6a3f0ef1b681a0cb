#include <cuda_runtime.h>

#include "cuda/call_guard.h"
#include "cuda/check.h"
#include "kernels/spin.h"

namespace kvo {

namespace {

__device__ std::uint64_t global_nanoseconds() {
  std::uint64_t now;
  asm volatile("mov.u64 %0, %globaltimer;" : "=l"(now));
  return now;
}

__global__ void spin(std::uint64_t nanoseconds) {
  const std::uint64_t start = global_nanoseconds();
  while (global_nanoseconds() - start < nanoseconds) __nanosleep(1000);
}

}  // namespace

Status launch_spin(int ordinal, StreamHandle stream, std::int64_t nanoseconds) {
  cuda::CallGuard guard(ordinal);
  spin<<<1, 1, 0, reinterpret_cast<cudaStream_t>(stream)>>>(nanoseconds);
  KVO_CUDA_TRY(cudaGetLastError());
  return {};
}

}  // namespace kvo
