// Whether a disk is used: off after a row of failures, then one record at a time tries it again.
#pragma once
#include <chrono>
#include <cstdint>
#include <string>

namespace kvo {

class DiskHealth {
 public:
  using Clock = std::chrono::steady_clock;

  DiskHealth(int most_failures, double retry_seconds)
      : most_failures_(most_failures),
        retry_(std::chrono::duration_cast<Clock::duration>(std::chrono::duration<double>(retry_seconds))) {}

  bool refuses(Clock::time_point now) const { return !off_.empty() && now < retry_at_; }
  // Of a record that is about to begin.
  bool lets_through(Clock::time_point now) {
    if (off_.empty()) return true;
    if (now < retry_at_) return false;
    retry_at_ = now + retry_;
    return true;
  }
  void worked() {
    if (broken_) return;
    failures_ = 0;
    off_.clear();
  }
  void failed(const std::string& why, Clock::time_point now) {
    if (++failures_ < most_failures_ || !off_.empty()) return;
    off_ = why + ", " + std::to_string(failures_) + " times in a row";
    retry_at_ = now + retry_;
    ++times_off_;
  }
  void broke(const std::string& why) {  // for good
    if (off_.empty()) ++times_off_;
    broken_ = true, off_ = why, retry_at_ = Clock::time_point::max();
  }

  const std::string& off() const { return off_; }
  std::int64_t times_off() const { return times_off_; }

 private:
  const int most_failures_;
  const Clock::duration retry_;
  int failures_ = 0;
  bool broken_ = false;
  std::string off_;
  Clock::time_point retry_at_{};
  std::int64_t times_off_ = 0;
};

}  // namespace kvo
