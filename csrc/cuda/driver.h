// Driver functions that the runtime has no call for, resolved when first needed: nothing here links against libcuda.
#pragma once
#include <cuda.h>
#include <cudaTypedefs.h>

namespace kvo::cuda {

// A member is null where the driver does not have it. Asked for by version: signatures changed between toolkits.
struct Driver {
  PFN_cuCtxGetCurrent_v4000 get_current = nullptr;
  PFN_cuCtxSetCurrent_v4000 set_current = nullptr;
  PFN_cuDevicePrimaryCtxRetain_v7000 retain_primary = nullptr;
  PFN_cuMemcpyBatchAsync_v12080 copy_batch = nullptr;  // from driver 12.8 on
};

const Driver& driver();

// The context that the runtime uses on a device; made if it does not exist. Null: the device cannot be used.
CUcontext primary_context(int ordinal);

}  // namespace kvo::cuda
