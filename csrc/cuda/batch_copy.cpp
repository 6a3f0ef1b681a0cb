#include "cuda/batch_copy.h"

#include <cuda.h>
#include <cudaTypedefs.h>

#include <vector>

#include "cuda/check.h"

namespace kvo::cuda {

namespace {

using BatchCopy = PFN_cuMemcpyBatchAsync_v12080;

// Asked for by version: the runtime's wrapper changed its signature between toolkits 12.9 and 13.0.
BatchCopy find_batch_copy() {
  void* symbol = nullptr;
  cudaDriverEntryPointQueryResult found = cudaDriverEntryPointSymbolNotFound;
  cudaError_t error = cudaGetDriverEntryPointByVersion("cuMemcpyBatchAsync", &symbol, 12080, cudaEnableDefault, &found);
  if (error != cudaSuccess) (void)cudaGetLastError();
  return error == cudaSuccess && found == cudaDriverEntryPointSuccess ? reinterpret_cast<BatchCopy>(symbol) : nullptr;
}

BatchCopy batch_copy() {
  static const BatchCopy function = find_batch_copy();
  return function;
}

Status copy_one(const CopySpan& span, Direction direction, cudaStream_t stream) {
  auto kind = direction == Direction::store ? cudaMemcpyDeviceToHost : cudaMemcpyHostToDevice;
  KVO_CUDA_TRY(cudaMemcpyAsync(span.dst, span.src, span.bytes, kind, stream));
  return {};
}

Status copy_batch(std::span<const CopySpan> spans, cudaStream_t stream) {
  // Read by the call itself, so one set a thread is enough.
  static thread_local std::vector<CUdeviceptr> destinations, sources;
  static thread_local std::vector<std::size_t> sizes;
  destinations.clear(), sources.clear(), sizes.clear();
  for (const CopySpan& span : spans) {
    destinations.push_back(reinterpret_cast<CUdeviceptr>(span.dst));
    sources.push_back(reinterpret_cast<CUdeviceptr>(span.src));
    sizes.push_back(span.bytes);
  }
  CUmemcpyAttributes attributes{};
  attributes.srcAccessOrder = CU_MEMCPY_SRC_ACCESS_ORDER_STREAM;  // never before what the stream waits for
  std::size_t first = 0, failed = 0;
  CUresult result = batch_copy()(destinations.data(), sources.data(), sizes.data(), spans.size(), &attributes, &first,
                                 1, &failed, stream);
  if (result == CUDA_SUCCESS) return {};
  return Status(Code::device, "cuMemcpyBatchAsync failed with CUresult " + std::to_string(result) + " at entry " +
                                  std::to_string(failed) + " of " + std::to_string(spans.size()));
}

}  // namespace

bool has_batch_copy() { return batch_copy() != nullptr; }

Status copy_spans(std::span<const CopySpan> spans, Direction direction, cudaStream_t stream) {
  if (spans.size() > 1 && has_batch_copy()) {
    for (; spans.size() > kMaxBatch; spans = spans.subspan(kMaxBatch))
      KVO_TRY(copy_batch(spans.first(kMaxBatch), stream));
    return copy_batch(spans, stream);
  }
  for (const CopySpan& span : spans) KVO_TRY(copy_one(span, direction, stream));
  return {};
}

}  // namespace kvo::cuda
