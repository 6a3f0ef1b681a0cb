// Memory for the ids of transfers, used again: fresh memory for 20,000 ids costs more than checking them (a page fault
// is about 1 us in a virtual machine). Holds at most what unfinished transfers once needed together.
#pragma once
#include <cstdint>
#include <memory>
#include <mutex>
#include <vector>

#include "base/brief_lock.h"

namespace kvo {

// 32 bits an id: half the memory.
struct IdList {
  std::unique_ptr<std::uint32_t[]> ids;
  std::int64_t count = 0, capacity = 0;
};

struct RequestIds {
  IdList blocks, slots;
};

class IdPool {
 public:
  explicit IdPool(std::size_t most_kept) : most_kept_(most_kept) {}
  // Lists of so many ids of any value.
  RequestIds take(std::int64_t blocks, std::int64_t slots) {
    RequestIds ids;
    {
      const auto lock = lock_briefly(mutex_);
      if (!free_.empty()) ids = std::move(free_.back()), free_.pop_back();
    }
    make_room(ids.blocks, blocks), make_room(ids.slots, slots);
    return ids;
  }
  void put_back(RequestIds& ids) {
    if (!ids.blocks.ids) return;
    const auto lock = lock_briefly(mutex_);
    if (free_.size() < most_kept_) free_.push_back(std::move(ids));
    ids = {};
  }

 private:
  static void make_room(IdList& list, std::int64_t count) {
    if (!list.ids || list.capacity < count) list = {std::make_unique_for_overwrite<std::uint32_t[]>(count), 0, count};
    list.count = count;
  }

  const std::size_t most_kept_;
  std::mutex mutex_;
  std::vector<RequestIds> free_;
};

}  // namespace kvo
