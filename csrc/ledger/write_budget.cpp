#include "ledger/write_budget.h"

#include <algorithm>
#include <string>

namespace kvo {

namespace {

constexpr double kDaySeconds = 24 * 3600;
constexpr std::int64_t kSharesPerDay = 24;
constexpr double kOpensAt = 0.25;

}  // namespace

double WriteBudget::capacity() const { return static_cast<double>(bytes_per_day_ / kSharesPerDay); }

Status WriteBudget::check(std::int64_t slot_bytes) const {
  if (bytes_per_day_ == 0 || bytes_per_day_ / kSharesPerDay >= slot_bytes) return {};
  return {Code::invalid, "disk_writes_per_day = " + std::to_string(bytes_per_day_) +
                             " bytes: an hour's share of it is less than a slot of " + std::to_string(slot_bytes) +
                             ", so nothing could be written: give at least " +
                             std::to_string(slot_bytes * kSharesPerDay) + ", or None for no limit"};
}

void WriteBudget::fill(double now_seconds) {
  const double rate = (static_cast<double>(bytes_per_day_) - capacity()) / kDaySeconds;
  const double passed_seconds = std::max(0.0, now_seconds - filled_at_.value_or(now_seconds));
  left_bytes_ = filled_at_ ? std::min(capacity(), left_bytes_ + passed_seconds * rate) : capacity();
  filled_at_ = std::max(now_seconds, filled_at_.value_or(now_seconds));
}

bool WriteBudget::allows(std::int64_t bytes, double now_seconds) {
  if (bytes_per_day_ == 0) return true;
  fill(now_seconds);
  dry_ = left_bytes_ < static_cast<double>(bytes) || (dry_ && left_bytes_ < capacity() * kOpensAt);
  return !dry_;
}

}  // namespace kvo
