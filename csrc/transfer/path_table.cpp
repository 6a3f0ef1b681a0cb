#include "transfer/path_table.h"

#include <algorithm>

namespace kvo {

PathTable::PathTable(const std::vector<PathRow>& rows) {
  for (const PathRow& row : rows)
    if (row.seconds > 0 && row.spans > 0)
      curves_[{row.direction, row.path}][row.span_bytes][static_cast<double>(row.spans)] = row.seconds;
}

// More spans never take less time, and a single point means so much a span.
double PathTable::at(const Curve& curve, double spans) {
  auto above = curve.lower_bound(spans);
  if (above == curve.end()) --above;
  if (above == curve.begin() && curve.size() > 1) ++above;
  if (above == curve.begin()) return above->second / above->first * spans;
  const auto [fewer, less] = *std::prev(above);
  const double each = std::max(above->second - less, 0.0) / (above->first - fewer);
  const double seconds = less + each * (spans - fewer);
  return spans < fewer ? std::max(seconds, less / fewer * spans) : seconds;
}

std::optional<double> PathTable::seconds(Direction direction, Path path, std::int64_t span_bytes,
                                         std::int64_t spans) const {
  const auto found = curves_.find({direction, path});
  if (found == curves_.end()) return std::nullopt;
  const Curves& curves = found->second;
  const auto count = static_cast<double>(spans);
  const auto above = curves.lower_bound(span_bytes);
  if (above == curves.end()) {
    const auto& [bytes, curve] = *curves.rbegin();
    return at(curve, count * static_cast<double>(span_bytes) / static_cast<double>(bytes));
  }
  const double high = at(above->second, count);
  if (above == curves.begin() || above->first == span_bytes) return high;
  const auto below = std::prev(above);
  const double low = at(below->second, count);
  const double share =
      static_cast<double>(span_bytes - below->first) / static_cast<double>(above->first - below->first);
  return low + (high - low) * share;
}

}  // namespace kvo
