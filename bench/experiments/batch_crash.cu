// Which use of cuMemcpyBatchAsync makes a driver crash: each case in a process of its own.
//   nvcc -std=c++17 -O2 batch_crash.cu -o batch_crash && ./batch_crash
#include <cuda.h>
#include <cudaTypedefs.h>
#include <cuda_runtime.h>
#include <sys/mman.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cmath>
#include <cstdio>
#include <mutex>
#include <thread>
#include <vector>

struct Case {
  const char* name;
  bool store, load, one_lock;
  std::size_t batch;
  int align, sync_every;  // rounds between synchronisations
  std::size_t least, most;
  bool pieces = false;  // registered in 64 MiB pieces; copies that would cross are left out
  bool behind_a_kernel = false;  // all copies wait behind a kernel of 3 seconds
};

constexpr int kBlocks = 2000, kPages = 30;
static PFN_cuMemcpyBatchAsync_v12080 batch_copy;
static std::mutex one_lock;

__global__ void spin(unsigned long long nanoseconds) {
  unsigned long long start, now;
  asm volatile("mov.u64 %0, %globaltimer;" : "=l"(start));
  do asm volatile("mov.u64 %0, %globaltimer;" : "=l"(now));
  while (now - start < nanoseconds);
}

static int copy_rounds(const Case& c, bool store, char* device, char* host, int rounds) {
  cudaStream_t stream;
  cudaStreamCreateWithFlags(&stream, cudaStreamNonBlocking);
  std::vector<std::size_t> sizes(kPages), starts(kPages + 1, 0);
  for (int p = 0; p < kPages; ++p) {
    sizes[p] = (std::size_t)(c.least * std::pow((double)c.most / c.least, p / (kPages - 1.0))) / c.align * c.align;
    starts[p + 1] = starts[p] + kBlocks * (sizes[p] + 64);
  }
  if (c.behind_a_kernel) spin<<<1, 1, 0, stream>>>(3000000000ull);
  for (int round = 0; round < rounds; ++round) {
    std::vector<CUdeviceptr> dst, src;
    std::vector<std::size_t> bytes;
    for (int b = 0; b < kBlocks; ++b) {
      const std::size_t block = (b * 7919ul + round * 13ul) % kBlocks, slot = (b * 104729ul + round) % kBlocks;
      std::size_t at = 0;
      for (int p = 0; p < kPages; ++p) {
        CUdeviceptr d = (CUdeviceptr)(device + starts[p] + block * (sizes[p] + 64)), h = (CUdeviceptr)(host + slot * 475136 + at);
        const std::size_t from = slot * 475136 + at;
        at += sizes[p];
        if (c.pieces && from >> 26 != (from + sizes[p] - 1) >> 26) continue;
        dst.push_back(store ? h : d), src.push_back(store ? d : h), bytes.push_back(sizes[p]);
      }
    }
    CUmemcpyAttributes attributes{};
    attributes.srcAccessOrder = CU_MEMCPY_SRC_ACCESS_ORDER_STREAM;
    for (std::size_t i = 0; i < dst.size(); i += c.batch) {
      std::size_t first = 0, failed = 0;
      std::unique_lock<std::mutex> guard(one_lock, std::defer_lock);
      if (c.one_lock) guard.lock();
      CUresult r = batch_copy(&dst[i], &src[i], &bytes[i], std::min(c.batch, dst.size() - i), &attributes, &first, 1, &failed, stream);
      if (r != CUDA_SUCCESS) return std::printf(" CUresult %d at entry %zu of round %d;", r, i + failed, round), 1;
    }
    if (round % c.sync_every == 0)
      if (cudaError_t e = cudaStreamSynchronize(stream)) return std::printf(" %s in round %d;", cudaGetErrorName(e), round), 1;
  }
  if (cudaError_t e = cudaStreamSynchronize(stream)) return std::printf(" %s at the end;", cudaGetErrorName(e)), 1;
  return 0;
}

static int run(const Case& c) {
  char *device, *host;
  const std::size_t host_bytes = 1ul << 30;
  cudaMalloc(&device, 1ul << 30);
  host = (char*)mmap(nullptr, host_bytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_POPULATE, -1, 0);
  for (std::size_t piece = c.pieces ? 64ul << 20 : host_bytes, at = 0; at < host_bytes; at += piece)
    if (cudaHostRegister(host + at, piece, cudaHostRegisterPortable)) return 2;
  void* symbol = nullptr;
  cudaDriverEntryPointQueryResult found;
  cudaGetDriverEntryPointByVersion("cuMemcpyBatchAsync", &symbol, 12080, cudaEnableDefault, &found);
  batch_copy = (PFN_cuMemcpyBatchAsync_v12080)symbol;
  int bad[2] = {0, 0};
  std::vector<std::thread> threads;
  for (int direction = 0; direction < 2; ++direction)
    if (direction ? c.load : c.store) threads.emplace_back([&, direction] { bad[direction] = copy_rounds(c, !direction, device, host, 40); });
  for (auto& thread : threads) thread.join();
  return bad[0] | bad[1];
}

int main() {
  const Case cases[] = {
      {"store, 4096 a batch, behind a kernel", true, false, false, 4096, 2, 1000, 512, 65536, false, true},
      {"load, 4096 a batch, behind a kernel", false, true, false, 4096, 2, 1000, 512, 65536, false, true},
      {"both, 64 a batch, behind a kernel", true, true, false, 64, 2, 1000, 512, 65536, false, true},
      {"store, 4096 a batch", true, false, false, 4096, 2, 1000, 512, 65536},
      {"both, 4096 a batch", true, true, false, 4096, 2, 1000, 512, 65536},
      {"both, 4096 a batch, 64 MiB pieces", true, true, false, 4096, 2, 1000, 512, 65536, true},
      {"both, 64 a batch", true, true, false, 64, 2, 1000, 512, 65536},
  };
  for (const Case& c : cases) {
    std::printf("%s:", c.name);
    std::fflush(stdout);
    pid_t child = fork();
    if (child == 0) {
      alarm(20);
      const int code = run(c);
      std::fflush(stdout);
      _exit(code);
    }
    int status = 0;
    waitpid(child, &status, 0);
    std::printf(WIFSIGNALED(status) ? " killed by signal %d\n" : " exit %d\n", WIFSIGNALED(status) ? WTERMSIG(status) : WEXITSTATUS(status));
    std::fflush(stdout);
  }
}
