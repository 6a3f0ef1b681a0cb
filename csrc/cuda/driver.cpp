#include "cuda/driver.h"

#include <cuda_runtime_api.h>

#include <array>
#include <atomic>

namespace kvo::cuda {

namespace {

constexpr int kMostDevices = 64;

template <class Function>
void find(Function& function, const char* name, unsigned version) {
  void* symbol = nullptr;
  cudaDriverEntryPointQueryResult found = cudaDriverEntryPointSymbolNotFound;
  const cudaError_t error = cudaGetDriverEntryPointByVersion(name, &symbol, version, cudaEnableDefault, &found);
  if (error != cudaSuccess) (void)cudaGetLastError();
  if (error == cudaSuccess && found == cudaDriverEntryPointSuccess) function = reinterpret_cast<Function>(symbol);
}

Driver find_all() {
  Driver functions;
  find(functions.get_current, "cuCtxGetCurrent", 4000);
  find(functions.set_current, "cuCtxSetCurrent", 4000);
  find(functions.retain_primary, "cuDevicePrimaryCtxRetain", 7000);
  find(functions.copy_batch, "cuMemcpyBatchAsync", 12080);
  return functions;
}

}  // namespace

const Driver& driver() {
  static const Driver functions = find_all();
  return functions;
}

CUcontext primary_context(int ordinal) {
  static std::array<std::atomic<CUcontext>, kMostDevices> contexts{};
  if (ordinal < 0 || ordinal >= kMostDevices || !driver().retain_primary) return nullptr;
  CUcontext context = contexts[ordinal].load(std::memory_order_acquire);
  if (context) return context;
  // Never given back: as the runtime does, it lives as long as the process.
  if (driver().retain_primary(&context, ordinal) != CUDA_SUCCESS) return nullptr;
  contexts[ordinal].store(context, std::memory_order_release);
  return context;
}

}  // namespace kvo::cuda
