#include "transfer/path_table.h"

#include <algorithm>

namespace kvo {

PathTable::PathTable(const std::vector<PathRow>& rows) {
  using Points = std::map<std::int64_t, double>;  // number of spans -> seconds
  std::map<std::pair<Direction, Path>, std::map<std::int64_t, Points>> all;
  for (const PathRow& row : rows)
    if (row.seconds > 0 && row.spans > 0) all[{row.direction, row.path}][row.span_bytes][row.spans] = row.seconds;
  for (const auto& [key, sizes] : all) {
    for (const auto& [span_bytes, points] : sizes) {
      const auto [fewest, least] = *points.begin();
      const auto [most, longest] = *points.rbegin();
      const double each = fewest == most ? longest / static_cast<double>(most)
                                         : std::max(longest - least, 0.0) / static_cast<double>(most - fewest);
      lines_[key][span_bytes] = {std::max(least - each * static_cast<double>(fewest), 0.0), each};
    }
  }
}

std::optional<double> PathTable::seconds(Direction direction, Path path, std::int64_t span_bytes,
                                         std::int64_t spans) const {
  const auto found = lines_.find({direction, path});
  if (found == lines_.end()) return std::nullopt;
  const Lines& lines = found->second;
  const auto count = static_cast<double>(spans);
  const auto above = lines.lower_bound(span_bytes);
  if (above == lines.end()) {
    const auto& [bytes, line] = *lines.rbegin();
    return line.start + count * line.each * static_cast<double>(span_bytes) / static_cast<double>(bytes);
  }
  const Line& high = above->second;
  if (above == lines.begin() || above->first == span_bytes) return high.start + count * high.each;
  const auto below = std::prev(above);
  const Line& low = below->second;
  const double share =
      static_cast<double>(span_bytes - below->first) / static_cast<double>(above->first - below->first);
  return low.start + (high.start - low.start) * share + count * (low.each + (high.each - low.each) * share);
}

}  // namespace kvo
