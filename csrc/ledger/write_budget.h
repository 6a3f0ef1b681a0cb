// How much may be written to the disk: a bucket that holds an hour's share of a day's bytes and fills evenly, so that
// no 24 hours see more than the day's bytes. One that ran dry opens again when it is a quarter full: written in bursts,
// prefixes are whole; a slot at a time, the disk would hold one key of each.
//
// The clock is the caller's, in seconds from any start; where it goes back, no time has passed.
#pragma once
#include <cstdint>
#include <optional>

#include "base/status.h"

namespace kvo {

class WriteBudget {
 public:
  explicit WriteBudget(std::int64_t bytes_per_day) : bytes_per_day_(bytes_per_day) {}  // 0: unlimited

  Status check(std::int64_t slot_bytes) const;  // whether it can ever write a slot

  bool allows(std::int64_t bytes, double now_seconds);
  void spend(std::int64_t bytes) { left_bytes_ -= static_cast<double>(bytes); }      // what it allowed
  void give_back(std::int64_t bytes) { left_bytes_ += static_cast<double>(bytes); }  // what was not written after all

 private:
  double capacity() const;
  void fill(double now_seconds);

  const std::int64_t bytes_per_day_;
  double left_bytes_ = 0;
  std::optional<double> filled_at_;  // none: it starts full
  bool dry_ = false;
};

}  // namespace kvo
