// Locks that are held for well under a microsecond, between threads that run at the same time.
#pragma once
#include <mutex>

namespace kvo {

// A moment of a thread that waits: a core often runs two threads, and the other one may be what is waited for.
inline void relax() {
#if defined(__x86_64__)
  __builtin_ia32_pause();
#endif
}

// To sleep until such a lock is free and be woken takes 20 to 60 us, so try for a few microseconds first.
inline std::unique_lock<std::mutex> lock_briefly(std::mutex& mutex) {
  constexpr int kTries = 64;
  for (int i = 0; i < kTries; ++i) {
    std::unique_lock lock(mutex, std::try_to_lock);
    if (lock.owns_lock()) return lock;
    relax();
  }
  return std::unique_lock(mutex);
}

}  // namespace kvo
