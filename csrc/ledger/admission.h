// Which keys are worth a write to the disk. Single-threaded, under its owner's mutex.
//
// `all`: every key that is stored. `second_touch`: those asked for again while host memory has them. `tinylfu`: those
// used at least as often of late as the key that would have to go, and all while the disk has room.
#pragma once
#include <cstddef>
#include <cstdint>
#include <optional>
#include <string_view>

#include "ledger/frequency_sketch.h"

namespace kvo {

enum class Admission { all, second_touch, tinylfu };

std::optional<Admission> admission_named(std::string_view name);

class AdmissionFilter {
 public:
  explicit AdmissionFilter(Admission admission) : admission_(admission) {}

  void set_capacity(std::int64_t disk_slots);

  // When a key that is not on disk starts to wait for it: once its bytes are complete, and at each later use.
  bool at_store() const { return admission_ != Admission::second_touch; }
  bool at_later_use() const { return admission_ != Admission::all; }

  // Whether it may refuse a key that waits, and has to hear of every use of a key by a request, whether it was there or
  // not.
  bool by_frequency() const { return admission_ == Admission::tinylfu; }
  void used(int group, std::string_view key);
  bool may_push_out(int group, std::string_view key, std::string_view victim) const;

 private:
  const Admission admission_;
  FrequencySketch sketch_;
};

}  // namespace kvo
