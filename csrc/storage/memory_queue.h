// IoQueue over plain memory: every request is carried out in a random order and in random parts. For tests.
#pragma once
#include <algorithm>
#include <cstring>
#include <random>
#include <utility>

#include "storage/io_queue.h"

namespace kvo {

class MemoryQueue final : public IoQueue {
 public:
  using File = std::vector<std::byte>;

  MemoryQueue(std::vector<File>& files, int depth, unsigned seed)
      : IoQueue({{}, depth, nullptr, 0}), files_(files), random_(seed) {}

  const char* name() const override { return "memory"; }
  void wake() override {}

 private:
  void start(const IoRequest& part, std::uint64_t number) override { parts_.emplace_back(part, number); }

  Status pump(std::vector<Completion>& completions, Deadline) override {
    if (parts_.empty()) return {};
    std::swap(parts_[random_() % parts_.size()], parts_.back());
    const auto [part, number] = parts_.back();
    parts_.pop_back();
    completions.push_back({number, carry_out(part)});
    if (random_() % 4 == 0) completions.push_back({number, part.bytes});  // once more: a stray
    return {};
  }

  // As a file system may: an end of file, any short count, an interruption.
  std::int64_t carry_out(const IoRequest& part) {
    if (random_() % 8 == 0) return random_() % 2 == 0 ? -EINTR : -EAGAIN;
    File& file = files_[part.file];
    std::int64_t bytes = std::min<std::int64_t>(part.bytes, static_cast<std::int64_t>(file.size()) - part.offset);
    if (bytes <= 0) return 0;
    if (bytes > kDiskAlign && random_() % 2 == 0) bytes = kDiskAlign + random_() % (bytes - kDiskAlign);
    std::byte* place = file.data() + part.offset;
    part.kind == IoKind::read ? std::memcpy(part.memory, place, bytes) : std::memcpy(place, part.memory, bytes);
    return bytes;
  }

  std::vector<File>& files_;
  std::mt19937 random_;
  std::vector<std::pair<IoRequest, std::uint64_t>> parts_;
};

}  // namespace kvo
