// Memory for the ids of transfers, used again: fresh memory for 20,000 ids costs more than checking them (a page fault
// is about 1 us in a virtual machine). Holds at most what unfinished transfers once needed together.
#pragma once
#include <cstdint>
#include <memory>
#include <mutex>
#include <vector>

namespace kvo {

// 32 bits an id: half the memory.
struct IdList {
  std::unique_ptr<std::uint32_t[]> ids;
  std::int64_t count = 0, capacity = 0;
};

class IdPool {
 public:
  explicit IdPool(std::size_t most_kept) : most_kept_(most_kept) {}
  // A list of `count` ids of any value.
  IdList take(std::int64_t count) {
    IdList list;
    {
      std::lock_guard lock(mutex_);
      if (!free_.empty()) list = std::move(free_.back()), free_.pop_back();
    }
    if (list.capacity < count) list = {std::make_unique_for_overwrite<std::uint32_t[]>(count), count, count};
    list.count = count;
    return list;
  }
  void put_back(IdList& list) {
    std::lock_guard lock(mutex_);
    if (list.ids && free_.size() < most_kept_) free_.push_back(std::move(list));
    list = {};
  }

 private:
  const std::size_t most_kept_;
  std::mutex mutex_;
  std::vector<IdList> free_;
};

}  // namespace kvo
