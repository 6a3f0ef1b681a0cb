#include "cuda/batch_copy.h"

#include <vector>

#include "base/fault.h"
#include "cuda/check.h"
#include "cuda/driver.h"

namespace kvo::cuda {

namespace {

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
  CUresult result = driver().copy_batch(destinations.data(), sources.data(), sizes.data(), spans.size(), &attributes,
                                        &first, 1, &failed, stream);
  if (result == CUDA_SUCCESS) return {};
  return Status(Code::device, "cuMemcpyBatchAsync failed with CUresult " + std::to_string(result) + " at entry " +
                                  std::to_string(failed) + " of " + std::to_string(spans.size()));
}

}  // namespace

bool has_batch_copy() { return driver().copy_batch != nullptr && !fault::fires("batch_copy"); }

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
