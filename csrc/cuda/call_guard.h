// What every call from a foreign thread needs.
#pragma once
#include <cuda_runtime_api.h>

namespace kvo::cuda {

// While it lives the thread's current device is ours and its stream-capture mode relaxed, so that our calls neither
// change a caller's device nor invalidate a graph capture of another thread.
class CallGuard {
 public:
  explicit CallGuard(int ordinal) {
    (void)cudaThreadExchangeStreamCaptureMode(&mode_);
    if (cudaGetDevice(&previous_) != cudaSuccess) previous_ = -1;
    if (previous_ != ordinal) (void)cudaSetDevice(ordinal);
    changed_ = previous_ != ordinal;
  }
  ~CallGuard() {
    if (changed_ && previous_ >= 0) (void)cudaSetDevice(previous_);
    (void)cudaThreadExchangeStreamCaptureMode(&mode_);
  }
  CallGuard(const CallGuard&) = delete;

 private:
  cudaStreamCaptureMode mode_ = cudaStreamCaptureModeRelaxed;
  int previous_ = -1;
  bool changed_ = false;
};

}  // namespace kvo::cuda
