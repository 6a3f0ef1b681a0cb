// One record per slot.
#pragma once
#include <array>
#include <cstddef>
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

// What a job's bytes go over: device and host memory, or host memory and disk. A job that does not end hangs there.
enum class Medium : std::uint8_t { device, disk };
inline constexpr int kMediums = 2;

// The queue an entry is in follows from its state: free -> its extent's free ones; ready -> its group's policy's (none
// while it is pinned); else none.
struct Entry : PolicyNode {
  std::int64_t slot = 0;
  std::int32_t owners = 0;  // jobs in flight and holds
  // By medium: owners that are jobs past their deadline; the slot is quarantined meanwhile.
  std::array<std::int32_t, kMediums> given_up_jobs{};
  std::int16_t group = 0;
  EntryState state = EntryState::free;
  bool wanted_on_disk : 1 = false;        // host: it waits to be demoted
  bool being_demoted : 1 = false;         // host: on some rank, so nobody else may write a trailer there
  std::uint8_t failed_demotions : 6 = 0;  // host: of this key in this slot
  Key key;

  std::int32_t given_up(Medium by) const { return given_up_jobs[static_cast<std::size_t>(by)]; }
  bool quarantined() const { return given_up(Medium::device) + given_up(Medium::disk) > 0; }
};

}  // namespace kvo
