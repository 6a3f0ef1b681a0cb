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
  // Nothing where no row is of this direction and path. Linear in the number of spans for one size; between two sizes
  // linear in the bytes; beyond the largest one the time of a span grows with its bytes.
  std::optional<double> seconds(Direction direction, Path path, std::int64_t span_bytes, std::int64_t spans) const;

 private:
  struct Line {  // seconds = start + spans * each
    double start, each;
  };
  using Lines = std::map<std::int64_t, Line>;  // by span size
  std::map<std::pair<Direction, Path>, Lines> lines_;
};

}  // namespace kvo
