// Directories, memory and disk tiers that go with the test.
#pragma once
#include <fcntl.h>
#include <gtest/gtest.h>
#include <sys/wait.h>

#include <cstdlib>
#include <cstring>
#include <filesystem>
#include <functional>
#include <memory>
#include <random>
#include <string>
#include <vector>

#include "base/fault.h"
#include "storage/disk_tier.h"

namespace kvo {

inline std::chrono::steady_clock::time_point soon() {
  return std::chrono::steady_clock::now() + std::chrono::seconds(60);
}

// Aligned to 4 KiB, of random bytes.
class Memory {
 public:
  explicit Memory(std::int64_t bytes, unsigned seed = 1)
      : bytes_(bytes), base_(static_cast<std::byte*>(std::aligned_alloc(4096, round_up(bytes, 4096)))) {
    std::mt19937_64 random(seed);
    for (std::int64_t i = 0; i + 8 <= bytes; i += 8) {
      const std::uint64_t word = random();
      std::memcpy(base_.get() + i, &word, 8);
    }
  }
  std::byte* at(std::int64_t offset = 0) const { return base_.get() + offset; }
  std::int64_t bytes() const { return bytes_; }
  void clear() const { std::memset(base_.get(), 0, bytes_); }
  std::vector<std::byte> copy() const { return {at(), at(bytes_)}; }

 private:
  struct Free {
    void operator()(std::byte* memory) const { std::free(memory); }
  };
  std::int64_t bytes_;
  std::unique_ptr<std::byte, Free> base_;
};

struct TempDir {
  TempDir() {
    std::string name = (std::filesystem::temp_directory_path() / "storage-XXXXXX").string();
    if (mkdtemp(name.data()) != nullptr) path = name;
  }
  ~TempDir() { std::filesystem::remove_all(path); }
  std::string make(const std::string& name) const {
    std::filesystem::create_directory(path + "/" + name);
    return path + "/" + name;
  }
  std::string path;
};

// Why tests of a way to do I/O cannot run here; empty: they can.
inline std::string why_not(const std::string& io) { return open_io_queue(io, {{}, 1}).status().message(); }

struct StorageTest : testing::Test {
  ~StorageTest() override { fault::disarm_all(); }
  TempDir dir;
};

// The exit status of a child that runs `body`, which says 0 for all is well: for limits and filters that stay.
inline int in_child(const std::function<int()>& body) {
  const pid_t child = fork();
  if (child == 0) _exit(body());
  int status = 0;
  while (waitpid(child, &status, 0) < 0 && errno == EINTR) {
  }
  return WIFEXITED(status) ? WEXITSTATUS(status) : 1000 + status;
}

}  // namespace kvo
