// CUDA results as Status. A failed call's pending error is cleared, or the next user of the runtime would report it.
#pragma once
#include <cuda_runtime_api.h>

#include <string>

#include "base/status.h"

namespace kvo::cuda {

inline Status to_status(cudaError_t error, const char* what) {
  if (error == cudaSuccess) return {};
  (void)cudaGetLastError();
  return Status(Code::device,
                std::string(what) + " failed: " + cudaGetErrorName(error) + ", " + cudaGetErrorString(error));
}

}  // namespace kvo::cuda

#define KVO_CUDA_TRY(call) KVO_TRY(::kvo::cuda::to_status((call), #call))
