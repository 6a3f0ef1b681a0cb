// What each path takes, by span size and number of spans: measured rows, and times predicted from them.
#pragma once
#include <map>
#include <optional>
#include <vector>

#include "base/copy_span.h"
#include "transfer/path.h"

namespace kvo {

struct PathRow {
  Direction direction;
  std::int64_t span_bytes, spans;
  Path path;
  double seconds;  // call to visible
};

class PathTable {
 public:
  PathTable() = default;
  explicit PathTable(const std::vector<PathRow>& rows);
  // Nothing where no row is of this direction and path. Linear in the number of spans between two that were measured
  // and beyond; between two sizes linear in their bytes; spans longer than the longest count as several of it.
  std::optional<double> seconds(Direction direction, Path path, std::int64_t span_bytes, std::int64_t spans) const;

 private:
  using Curve = std::map<double, double>;        // number of spans -> seconds
  using Curves = std::map<std::int64_t, Curve>;  // by span size
  static double at(const Curve& curve, double spans);

  std::map<std::pair<Direction, Path>, Curves> curves_;
};

}  // namespace kvo
