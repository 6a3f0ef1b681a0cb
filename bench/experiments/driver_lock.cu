// How long a thread's driver calls wait while another thread of the process enqueues batch copies.
//   nvcc -std=c++17 -O2 driver_lock.cu -o driver_lock && ./driver_lock
// For each batch size (1: cudaMemcpyAsync), without and with a gate (the enqueuing thread lets waiting callers pass
// between two batches): p50 and p99 of four calls in microseconds, and the copies enqueued per microsecond.
#include <cuda.h>
#include <cudaTypedefs.h>
#include <cuda_runtime.h>

#include <algorithm>
#include <atomic>
#include <chrono>
#include <cstdio>
#include <functional>
#include <thread>
#include <vector>

using Clock = std::chrono::steady_clock;
static double us_since(Clock::time_point start) { return std::chrono::duration<double, std::micro>(Clock::now() - start).count(); }

__global__ void nothing() {}

struct Copier {
  PFN_cuMemcpyBatchAsync_v12080 batch_copy = nullptr;
  char *device = nullptr, *host = nullptr;
  std::size_t batch = 1, bytes = 512, count = 4096;
  bool gate = false;
  std::atomic<int> waiting{0};
  std::atomic<bool> stop{false};
  double copies_per_us = 0;

  void run() {
    cudaStream_t stream;
    cudaStreamCreateWithFlags(&stream, cudaStreamNonBlocking);
    std::vector<CUdeviceptr> dst, src;
    std::vector<std::size_t> sizes(count, bytes);
    for (std::size_t i = 0; i < count; ++i) {
      dst.push_back((CUdeviceptr)(host + i * 2 * bytes));
      src.push_back((CUdeviceptr)(device + (i * 7919 % count) * 2 * bytes));
    }
    CUmemcpyAttributes attributes{};
    attributes.srcAccessOrder = CU_MEMCPY_SRC_ACCESS_ORDER_STREAM;
    double enqueue_us = 0;
    std::size_t copies = 0;
    while (!stop) {
      auto start = Clock::now();
      for (std::size_t i = 0; i < count && !stop; i += batch) {
        for (int spin = 0; gate && waiting.load() > 0 && spin < 20000; ++spin) __builtin_ia32_pause();
        std::size_t first = 0, failed = 0;
        if (batch == 1)
          cudaMemcpyAsync((void*)dst[i], (void*)src[i], bytes, cudaMemcpyDeviceToHost, stream);
        else
          batch_copy(&dst[i], &src[i], &sizes[i], std::min(batch, count - i), &attributes, &first, 1, &failed, stream);
        copies += std::min(batch, count - i);
      }
      enqueue_us += us_since(start);
      cudaStreamSynchronize(stream);
    }
    copies_per_us = copies / enqueue_us;
    cudaStreamDestroy(stream);
  }
};

static void measure(Copier& copier, const char* name, const std::function<void()>& call) {
  std::vector<double> samples;
  for (int i = 0; i < 400; ++i) {
    auto start = Clock::now();
    copier.waiting.fetch_add(1);
    call();
    copier.waiting.fetch_sub(1);
    samples.push_back(us_since(start));
    while (us_since(start) < samples.back() + 15) __builtin_ia32_pause();
  }
  std::sort(samples.begin(), samples.end());
  std::printf("  %s %.1f/%.1f", name, samples[samples.size() / 2], samples[samples.size() * 99 / 100]);
}

int main() {
  Copier copier;
  cudaMalloc(&copier.device, copier.count * 2 * copier.bytes);
  cudaHostAlloc(&copier.host, copier.count * 2 * copier.bytes, 0);
  void* symbol = nullptr;
  cudaDriverEntryPointQueryResult found;
  cudaGetDriverEntryPointByVersion("cuMemcpyBatchAsync", &symbol, 12080, cudaEnableDefault, &found);
  copier.batch_copy = (PFN_cuMemcpyBatchAsync_v12080)symbol;
  cudaStream_t stream;
  cudaStreamCreateWithFlags(&stream, cudaStreamNonBlocking);
  cudaEvent_t event;
  cudaEventCreateWithFlags(&event, cudaEventDisableTiming);
  for (std::size_t batch : {0, 1, 16, 64, 4096}) {
    for (bool gate : {false, true}) {
      if (batch == 0 && gate) continue;
      copier.batch = batch, copier.gate = gate, copier.stop = false, copier.copies_per_us = 0;
      std::thread thread;
      if (batch) thread = std::thread([&] { copier.run(); });
      std::this_thread::sleep_for(std::chrono::milliseconds(50));
      std::printf("batch %4zu gate %d:", batch, gate);
      measure(copier, "record", [&] { cudaEventRecord(event, stream); });
      measure(copier, "create+record+destroy", [&] {
        cudaEvent_t fresh;
        cudaEventCreateWithFlags(&fresh, cudaEventDisableTiming);
        cudaEventRecord(fresh, stream);
        cudaEventDestroy(fresh);
      });
      measure(copier, "query", [&] { cudaEventQuery(event); });
      measure(copier, "record-legacy", [&] { cudaEventRecord(event, nullptr); });
      measure(copier, "capturing", [&] { cudaStreamCaptureStatus status; cudaStreamIsCapturing(stream, &status); });
      measure(copier, "capturing-legacy", [&] { cudaStreamCaptureStatus status; cudaStreamIsCapturing(nullptr, &status); });
      measure(copier, "wait", [&] { cudaStreamWaitEvent(stream, event, 0); });
      measure(copier, "exchange", [&] {
        cudaStreamCaptureMode mode = cudaStreamCaptureModeRelaxed;
        cudaThreadExchangeStreamCaptureMode(&mode);
        cudaThreadExchangeStreamCaptureMode(&mode);
      });
      measure(copier, "getdevice", [&] { int device; cudaGetDevice(&device); });
      measure(copier, "launch", [&] { nothing<<<1, 1, 0, stream>>>(); });
      copier.stop = true;
      if (thread.joinable()) thread.join();
      std::printf("  copies/us %.2f\n", copier.copies_per_us);
      std::fflush(stdout);
    }
  }
  std::printf("%s\n", cudaGetErrorString(cudaGetLastError()));
}
