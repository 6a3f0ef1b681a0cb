// Stands in for cuda_device.cpp and the kernels where kvoffload is built without CUDA.
#include "device/device.h"
#include "kernels/spin.h"

namespace kvo {

static Status no_cuda() {
  return Status(Code::unsupported,
                "this kvoffload was built without CUDA: only host tensors work; build with KVO_CUDA=ON (needs nvcc)");
}

Result<std::shared_ptr<Device>> make_cuda_device(int) { return no_cuda(); }
Status launch_spin(int, StreamHandle, std::int64_t) { return no_cuda(); }

}  // namespace kvo
