// One record per slot.
#pragma once
#include <cstdint>

#include "ledger/eviction_policy.h"
#include "ledger/key.h"

namespace kvo {

enum class EntryState : std::uint8_t {
  free,     // no key
  filling,  // in the map; its store job has not ended
  ready,    // in the map; bytes complete on every rank
  dead,     // out of the map; the slot waits for its last owner
};

// The queue an entry is in follows from its state: free -> its extent's free ones; ready -> its group's policy's (none
// while it is pinned); else none.
struct Entry : PolicyNode {
  std::int64_t slot = 0;
  std::int32_t owners = 0;         // jobs in flight and holds
  std::int32_t given_up_jobs = 0;  // owners that are jobs past their deadline: the slot is quarantined meanwhile
  std::int16_t group = 0;
  EntryState state = EntryState::free;
  bool wanted_on_disk = false;  // host: it waits to be demoted
  Key key;
};

}  // namespace kvo
