// Other ways to feed a copy engine beside a busy GPU than the one that was built: for bench/experiments/staged_ways.py.
//   nvcc -std=c++20 -arch=sm_90 -O3 -shared -Xcompiler -fPIC staged_ways.cu -o staged_ways.so
// Transfers of `pages` pages, scattered on the device, in slots of 2 MiB; the ring has 128 MiB.
#include <cuda.h>
#include <cuda_runtime.h>

#include <cstdint>
#include <vector>

namespace {

constexpr std::size_t kSlot = 2 << 20, kRing = 128 << 20;
constexpr int kThreads = 512, kUnit = 4096, kMostPieces = 64;
using Wait = CUresult (*)(CUstream, CUdeviceptr, std::uint32_t, unsigned);

struct Part {
  char *pages, *ring;
  const std::uint32_t* ids;
  std::uint32_t count, page_bytes;
  bool store;
  std::uint32_t *counters, *flags, piece_units, round;  // counters == nullptr: nothing is signalled
};

__global__ void __launch_bounds__(kThreads) move(const Part part) {
  const std::uint32_t lane = threadIdx.x % 32, per_page = part.page_bytes / kUnit, units = part.count * per_page;
  for (std::uint32_t unit = blockIdx.x * 16 + threadIdx.x / 32; unit < units; unit += gridDim.x * 16) {
    char* page = part.pages + std::size_t(part.ids[unit / per_page]) * part.page_bytes + unit % per_page * kUnit;
    char* image = part.ring + std::size_t(unit) * kUnit;
    const auto* from = reinterpret_cast<const uint4*>(part.store ? page : image) + lane;
    auto* to = reinterpret_cast<uint4*>(part.store ? image : page) + lane;
    uint4 held[8];
#pragma unroll
    for (int k = 0; k < 8; ++k) held[k] = from[32 * k];
#pragma unroll
    for (int k = 0; k < 8; ++k) to[32 * k] = held[k];
    if (!part.counters) continue;
    __syncwarp();
    __threadfence();
    const std::uint32_t piece = unit / part.piece_units;
    if (lane == 0 && atomicAdd(&part.counters[piece], 1) + 1 == part.piece_units * part.round) {
      __threadfence_system();
      *reinterpret_cast<volatile std::uint32_t*>(&part.flags[piece]) = part.round;
    }
  }
}

struct Rig {
  char *pages, *ring, *host;
  const std::uint32_t *ids, *slots;
  std::uint32_t count, page_bytes;
  int ctas;
  std::vector<cudaStream_t> streams;
  std::vector<cudaEvent_t> drained;  // by piece of the ring
  cudaEvent_t joined;
  std::uint32_t *counters, *flags, round = 0;
  std::size_t next = 0;
  Wait wait;
};

void copy_slots(Rig& rig, std::size_t first_slot, std::size_t bytes, char* ring, bool store, cudaStream_t stream) {
  for (std::size_t at = 0; at < bytes; at += kSlot) {
    char* slot = rig.host + std::size_t(rig.slots[first_slot + at / kSlot]) * kSlot;
    if (store)
      cudaMemcpyAsync(slot, ring + at, kSlot, cudaMemcpyDeviceToHost, stream);
    else
      cudaMemcpyAsync(ring + at, slot, kSlot, cudaMemcpyHostToDevice, stream);
  }
}

}  // namespace

extern "C" {

void* rig_make(char* pages, char* ring, char* host, const std::uint32_t* ids, const std::uint32_t* slots,
               std::uint32_t count, std::uint32_t page_bytes, int streams, int urgent, int ctas) {
  auto* rig = new Rig{pages, ring, host, ids, slots, count, page_bytes, ctas};
  int least = 0, greatest = 0;
  cudaDeviceGetStreamPriorityRange(&least, &greatest);
  for (int i = 0; i < streams; ++i) {
    cudaStream_t stream;
    cudaStreamCreateWithPriority(&stream, cudaStreamNonBlocking, urgent ? greatest : least);
    rig->streams.push_back(stream);
  }
  rig->drained.resize(kMostPieces);
  for (auto& event : rig->drained) cudaEventCreateWithFlags(&event, cudaEventDisableTiming);
  cudaEventCreateWithFlags(&rig->joined, cudaEventDisableTiming);
  cudaMalloc(&rig->counters, 2 * kMostPieces * sizeof(std::uint32_t));
  cudaMemset(rig->counters, 0, 2 * kMostPieces * sizeof(std::uint32_t));
  rig->flags = rig->counters + kMostPieces;
  void* symbol = nullptr;
  cudaDriverEntryPointQueryResult found;
  cudaGetDriverEntryPointByVersion("cuStreamWaitValue32", &symbol, 12000, cudaEnableDefault, &found);
  rig->wait = reinterpret_cast<Wait>(symbol);
  cudaDeviceSynchronize();
  return rig;
}

// Piece i on stream i of the rig's: its kernel and its copies one after the other, as many pieces at once as streams.
void in_flight(void* handle, std::size_t piece, int store) {
  Rig& rig = *static_cast<Rig*>(handle);
  const std::size_t total = std::size_t(rig.count) * rig.page_bytes, pieces = kRing / piece;
  for (std::size_t at = 0; at < total; at += piece, ++rig.next) {
    const std::size_t place = rig.next % pieces;
    cudaStream_t stream = rig.streams[rig.next % rig.streams.size()];
    char* ring = rig.ring + place * piece;
    const Part part{rig.pages, ring, rig.ids + at / rig.page_bytes, std::uint32_t(piece / rig.page_bytes),
                    rig.page_bytes, bool(store)};
    cudaStreamWaitEvent(stream, rig.drained[place], 0);
    if (!store) copy_slots(rig, at / kSlot, piece, ring, false, stream);
    move<<<rig.ctas, kThreads, 0, stream>>>(part);
    if (store) copy_slots(rig, at / kSlot, piece, ring, true, stream);
    cudaEventRecord(rig.drained[place], stream);
  }
  for (cudaStream_t stream : rig.streams) {
    cudaEventRecord(rig.joined, stream);
    cudaStreamWaitEvent(rig.streams[0], rig.joined, 0);
  }
}

// One gather for half of the ring, on stream 0, that signals each piece to the copies on stream 1. Stores only: a
// scatter that waited for its pieces would hold SMs while the link works.
void signalled(void* handle, std::size_t piece) {
  Rig& rig = *static_cast<Rig*>(handle);
  const std::size_t total = std::size_t(rig.count) * rig.page_bytes, half = kRing / 2;
  for (std::size_t at = 0; at < total; at += half, ++rig.next) {
    const std::size_t side = rig.next % 2;
    rig.round += side == 0;
    const std::uint32_t first = std::uint32_t(side * (half / piece));
    char* ring = rig.ring + side * half;
    cudaStreamWaitEvent(rig.streams[0], rig.drained[side], 0);
    move<<<rig.ctas, kThreads, 0, rig.streams[0]>>>(
        Part{rig.pages, ring, rig.ids + at / rig.page_bytes, std::uint32_t(half / rig.page_bytes), rig.page_bytes, true,
             rig.counters + first, rig.flags + first, std::uint32_t(piece / kUnit), rig.round});
    for (std::size_t i = 0; i < half / piece; ++i) {
      rig.wait(rig.streams[1], reinterpret_cast<CUdeviceptr>(rig.flags + first + i), rig.round, CU_STREAM_WAIT_VALUE_GEQ);
      copy_slots(rig, (at + i * piece) / kSlot, piece, ring + i * piece, true, rig.streams[1]);
    }
    cudaEventRecord(rig.drained[side], rig.streams[1]);
  }
}

int rig_wait(void* handle, void* event) { return cudaEventSynchronize(static_cast<cudaEvent_t>(event)); }
void* rig_mark(void* handle, int stream) {
  cudaEvent_t event;
  cudaEventCreateWithFlags(&event, cudaEventDisableTiming | cudaEventBlockingSync);
  cudaEventRecord(event, static_cast<Rig*>(handle)->streams[stream]);
  return event;
}
}
