// How fast memory that was never used before comes into a process. Nothing is freed between phases, so each is cold.
//   g++ -O2 -pthread prefault.cpp -o prefault && ./prefault GIB_PER_PHASE
#include <sys/mman.h>

#include <atomic>
#include <chrono>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <thread>
#include <vector>

#ifndef MADV_POPULATE_WRITE
#define MADV_POPULATE_WRITE 23
#endif
constexpr long kMiB = 1L << 20, kGiB = 1L << 30;
using Clock = std::chrono::steady_clock;
static double seconds_since(Clock::time_point start) { return std::chrono::duration<double>(Clock::now() - start).count(); }

static long mem_total_gib() {
  FILE* file = fopen("/proc/meminfo", "r");
  long kib = 0;
  if (fscanf(file, "MemTotal: %ld kB", &kib) != 1) kib = 0;
  fclose(file);
  return kib >> 20;
}

static void phase(const char* name, long bytes, bool huge, bool populate, int threads, long unit) {
  char* base = (char*)mmap(nullptr, bytes + 2 * kMiB, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
  base = (char*)(((unsigned long)base + 2 * kMiB - 1) / (2 * kMiB) * (2 * kMiB));
  madvise(base, bytes, huge ? MADV_HUGEPAGE : MADV_NOHUGEPAGE);
  std::atomic<long> next{0}, done{0};
  auto start = Clock::now();
  std::vector<std::thread> workers;
  for (int t = 0; t < threads; ++t)
    workers.emplace_back([&] {
      for (long at; (at = next.fetch_add(unit)) < bytes;) {
        if (!populate || madvise(base + at, unit, MADV_POPULATE_WRITE) != 0)
          for (long i = at; i < at + unit; i += 4096) *(volatile char*)(base + i) = 0;
        done += unit;
      }
    });
  std::printf("%s: before %ld GiB total;", name, mem_total_gib());
  double last = 0;
  for (long mark = 2 * kGiB; mark <= bytes; mark += 2 * kGiB) {
    while (done < mark) std::this_thread::sleep_for(std::chrono::milliseconds(2));
    const double now = seconds_since(start);
    std::printf(" %.1f", 2 / (now - last));
    last = now;
  }
  for (auto& worker : workers) worker.join();
  std::printf(" | %.1f GiB/s, after %ld GiB total\n", (double)bytes / kGiB / seconds_since(start), mem_total_gib());
  std::fflush(stdout);
}

int main(int argc, char** argv) {
  const long bytes = (argc > 1 ? atol(argv[1]) : 16) * kGiB;
  phase("populate, huge, 16 threads, 16 MiB", bytes, true, true, 16, 16 * kMiB);
  phase("touch, huge, 16 threads, 64 MiB   ", bytes, true, false, 16, 64 * kMiB);
  phase("populate, small, 16 threads       ", bytes, false, true, 16, 16 * kMiB);
  phase("populate, huge, 8 threads         ", bytes, true, true, 8, 16 * kMiB);
  phase("populate, huge, 16 threads, 2 MiB ", bytes, true, true, 16, 2 * kMiB);
}
