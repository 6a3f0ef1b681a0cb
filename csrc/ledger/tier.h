// The keys of one tier: which slot holds which key, what may be evicted and when a slot is free again. Host and disk
// are two of these; what moves between them is the directory's matter.
//
// Per key: absent, filling, ready; a count of owners (jobs and holds). A ready slot with owners may be read by more; it
// is never evicted or refilled. A dead entry (failed, forgotten, of an old epoch) is out of the map at once; its slot
// is free when its last owner is gone. Not thread-safe: the directory's lock guards it.
#pragma once
#include <cstdint>
#include <memory>
#include <span>
#include <string_view>
#include <utility>
#include <vector>

#include "base/status.h"
#include "layout/extents.h"
#include "ledger/entry.h"
#include "ledger/key_table.h"
#include "ledger/slot_pool.h"

namespace kvo {

using Keys = std::span<const std::string_view>;

struct SlotName {
  int group;
  std::int64_t slot;
  bool operator==(const SlotName&) const = default;
};

class Tier {
 public:
  struct Group {
    KeyTable map;
    std::unique_ptr<EvictionPolicy> policy;  // of ready entries; pinned while they have owners
    std::int64_t ready_keys = 0;
  };

  // `name` is for messages, and names the option that sets its size. `medium`: what the tier needs to work; of the
  // disk, slots whose ready key went are kept in freed(), for a manifest. `beside`: a tier whose slots its jobs hold as
  // well.
  Tier(const char* name, Medium medium, const Tier* beside = nullptr) : name_(name), medium_(medium), beside_(beside) {}

  // `policy`: a name that make_policy() knows.
  Status open(std::int64_t bytes, const std::vector<std::int64_t>& slot_bytes, std::string_view policy);
  void grow(std::int64_t ready_bytes);
  bool serves(int group) const;
  // More than 5 % of it, or of the tier beside it, waits for ranks that do not report jobs of this tier's medium.
  bool over_quarantine() const;

  Entry* find(int group, std::string_view key) const { return groups_[group].map.find(key); }
  KeyTable::Batch find_many(int group, Keys keys) const { return groups_[group].map.find_many(keys); }
  std::vector<Entry*> leading_ready(int group, Keys keys) const;
  // A use by a request begins with looked_up() and ends with used(): the key is stored again, or has been read from
  // here.
  void looked_up(const std::vector<Entry*>& entries);
  void used(Entry* entry);

  // Until it is destroyed these keys, as far as they are ready, are not evicted: the call that makes room needs them.
  class Kept {
   public:
    Kept(Tier& tier, int group, Keys keys, bool stored_again);
    ~Kept();
    Kept(const Kept&) = delete;

   private:
    Tier& tier_;
    std::vector<Entry*> pinned_;
  };
  // A slot for `key`, which is filling from now on; null: nothing is free and nothing may go. The caller owns it next.
  Entry* fill(int group, std::string_view key);
  void make_ready(Entry* entry);
  // A key that a manifest knows in this very slot. False: the slot is taken, does not exist, or the key is there
  // already.
  bool restore(const SlotName& name, std::string_view key);

  void own(Entry* entry);
  void disown(Entry* entry);
  void quarantine(Entry* entry, Medium by) { pool_.quarantine(entry, by); }
  void end_quarantine(Entry* entry, Medium by) { pool_.end_quarantine(entry, by); }
  // From here on the key is a miss; the slot is free once nobody owns it.
  void drop(Entry* entry);
  std::int64_t drop_all(const std::vector<Entry*>& entries);  // how many were not dead yet
  std::int64_t forget(int group, Keys keys);
  std::int64_t forget_all();

  std::int64_t evicted_keys() const { return evicted_keys_; }
  std::vector<SlotName> take_freed() { return std::exchange(freed_, {}); }
  const SlotPool& pool() const { return pool_; }
  const std::vector<Group>& groups() const { return groups_; }
  // Recounts everything; invalid names the first broken invariant.
  Status check() const;

 private:
  void tell_capacities();
  bool hung(Medium by) const { return pool_.quarantined_bytes(by) * 20 > pool_.ready_bytes(); }
  Entry* take_slot(int group);
  EvictionPolicy& policy_of(const Entry* entry) { return *groups_[entry->group].policy; }
  void bury(Entry* entry, bool evicted);
  void evict(Entry* entry);
  Status check_group(int group) const;

  const char* const name_;
  const Medium medium_;
  const Tier* const beside_;
  SlotPool pool_;
  std::vector<Group> groups_;
  std::int64_t evicted_keys_ = 0;
  std::vector<SlotName> freed_;
};

}  // namespace kvo
