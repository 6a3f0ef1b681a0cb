// What every call from a foreign thread needs.
#pragma once
#include <cuda_runtime_api.h>

#include "cuda/driver.h"

namespace kvo::cuda {

// While it lives the thread's current context is our device's and its stream-capture mode relaxed, so that our calls
// neither change a caller's device nor invalidate a graph capture of another thread. Contexts, not cudaSetDevice():
// going back to the device of a thread that never chose one would make a context there, hundreds of MiB of its memory.
class CallGuard {
 public:
  explicit CallGuard(int ordinal) {
    const CUcontext ours = primary_context(ordinal);
    if (!ours) {
      (void)cudaSetDevice(ordinal);  // the next call says what is wrong with it
    } else if (driver().get_current(&previous_) == CUDA_SUCCESS && previous_ != ours) {
      changed_ = driver().set_current(ours) == CUDA_SUCCESS;
    }
    (void)cudaThreadExchangeStreamCaptureMode(&mode_);
  }
  ~CallGuard() {
    (void)cudaThreadExchangeStreamCaptureMode(&mode_);
    if (changed_) (void)driver().set_current(previous_);
  }
  CallGuard(const CallGuard&) = delete;

 private:
  cudaStreamCaptureMode mode_ = cudaStreamCaptureModeRelaxed;
  CUcontext previous_ = nullptr;  // none: the thread never used a GPU
  bool changed_ = false;
};

}  // namespace kvo::cuda
