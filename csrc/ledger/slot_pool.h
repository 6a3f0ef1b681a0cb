// Which slots exist, which group an extent is lent to, and which slots are free, used or quarantined. It knows no keys.
#pragma once
#include <array>
#include <cstdint>
#include <memory>
#include <set>
#include <vector>

#include "layout/extents.h"
#include "ledger/entry.h"

namespace kvo {

// Of the slots in extents lent to one group: free + used + quarantined = capacity.
struct SlotCounts {
  std::int64_t capacity = 0, free = 0, quarantined = 0;
  std::int64_t used() const { return capacity - free - quarantined; }
};

class SlotPool {
 public:
  // An extent belongs to one group at a time: the same bytes are other slots to another group.
  struct Extent {
    int group = -1;  // -1: not lent
    std::unique_ptr<Entry[]> entries;
    std::int64_t usable = 0;  // slots that end within the ready bytes
    std::int64_t used = 0;    // slots that are not free
    std::int64_t owned = 0;   // slots whose entry has owners
    NodeQueue free;
  };

  void open(ExtentPlan plan, std::int64_t total_bytes);
  // More of the arena is ready; less than before changes nothing.
  void grow(std::int64_t ready_bytes);

  // A free slot of `group`, from a free extent if none of its own has one; null when there is neither.
  Entry* take(int group);
  // This very slot, if it exists and is free; its extent is lent to `group` if it was to nobody. Null otherwise.
  Entry* claim(int group, std::int64_t slot);
  // The entry has no owners and no key any more: its slot is free again.
  void give(Entry* entry);

  void add_owner(Entry* entry);
  void remove_owner(Entry* entry);
  // An owner of the entry is past its deadline, and hangs in `by`.
  void quarantine(Entry* entry, Medium by);
  void end_quarantine(Entry* entry, Medium by);

  // The extent to empty for `group`: of the richest group (if it has more extents than `group`), without owners, the
  // one that loses the fewest keys. -1: none.
  int extent_to_empty(int group) const;
  // The caller has given back every entry of the extent.
  void lend(int extent, int group);

  int groups() const { return static_cast<int>(counts_.size()); }
  const ExtentPlan& plan() const { return plan_; }
  std::int64_t ready_bytes() const { return ready_bytes_; }
  std::int64_t quarantined_bytes() const { return quarantined_bytes_; }
  std::int64_t quarantined_bytes(Medium by) const { return bytes_hung_[static_cast<std::size_t>(by)]; }
  std::int64_t free_extents() const { return static_cast<std::int64_t>(unlent_.size()); }
  const std::vector<Extent>& extents() const { return extents_; }
  const SlotCounts& counts(int group) const { return counts_[group]; }

 private:
  Extent& extent_of(const Entry* entry) { return extents_[plan_.extent_of(entry->group, entry->slot)]; }
  Entry* use(Extent& extent, Entry* entry);
  void add_slots(int extent);  // those that became usable since last time

  ExtentPlan plan_;
  std::int64_t total_bytes_ = 0;
  std::int64_t ready_bytes_ = 0;
  std::int64_t quarantined_bytes_ = 0;
  std::array<std::int64_t, kMediums> bytes_hung_{};  // quarantined, by medium; some in both
  std::vector<Extent> extents_;
  std::set<int> unlent_;                  // lowest first: what was pinned first is used first
  std::vector<std::set<int>> with_free_;  // per group: its extents that have free slots
  std::vector<std::int64_t> lent_;        // per group: how many extents
  std::vector<SlotCounts> counts_;
};

}  // namespace kvo
