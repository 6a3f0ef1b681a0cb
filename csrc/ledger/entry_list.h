// One record per slot, and the intrusive list that chains records: the free slots of an extent, or a group's LRU order.
#pragma once
#include <cstdint>

#include "ledger/key.h"

namespace kvo {

enum class EntryState : std::uint8_t {
  free,     // no key
  filling,  // in the map; its store job has not ended
  ready,    // in the map; bytes complete on every rank
  dead,     // out of the map; the slot waits for its last owner
};

// Which list an entry is in follows from its state: free -> its extent's free list; ready without owners -> its group's
// LRU list; else none.
struct Entry {
  Entry* previous = nullptr;
  Entry* next = nullptr;
  std::int64_t slot = 0;
  std::int32_t owners = 0;         // jobs in flight and holds
  std::int32_t given_up_jobs = 0;  // owners that are jobs past their deadline: the slot is quarantined meanwhile
  std::uint32_t touched_by = 0;    // the plan_store call that found this key ready
  std::int16_t group = 0;
  EntryState state = EntryState::free;
  bool wanted_on_disk = false;  // host: it waits to be demoted
  Key key;
};

class EntryList {
 public:
  bool empty() const { return front_ == nullptr; }
  Entry* front() const { return front_; }

  void push_front(Entry* entry) {
    entry->previous = nullptr;
    entry->next = front_;
    (front_ ? front_->previous : back_) = entry;
    front_ = entry;
  }

  void push_back(Entry* entry) {
    entry->next = nullptr;
    entry->previous = back_;
    (back_ ? back_->next : front_) = entry;
    back_ = entry;
  }

  void remove(Entry* entry) {
    (entry->previous ? entry->previous->next : front_) = entry->next;
    (entry->next ? entry->next->previous : back_) = entry->previous;
    entry->previous = entry->next = nullptr;
  }

  void move_to_back(Entry* entry) {
    if (entry == back_) return;
    remove(entry);
    push_back(entry);
  }

 private:
  Entry* front_ = nullptr;
  Entry* back_ = nullptr;
};

}  // namespace kvo
