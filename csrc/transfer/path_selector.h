// Which path a transfer takes: the least predicted time, corrected by what transfers took while serving.
//
// Not thread-safe: one for each lane, used under the lane's lock.
#pragma once
#include <array>
#include <optional>
#include <string>
#include <vector>

#include "transfer/path_table.h"

namespace kvo {

// A transfer as a path sees it: pages one by one, or merged into spans.
struct PathCost {
  Path path;
  std::int64_t span_bytes, spans;
};

struct PathChoice {
  enum class Reason { asked, only, table };
  Path path = Path::dma;
  Reason reason = Reason::only;
  double predicted_seconds = 0;                 // 0: no prediction
  std::array<double, kPaths.size()> seconds{};  // predicted of each, corrected; 0: not usable or unknown
  std::int64_t span_bytes = 0, spans = 0;       // before merging
};

class PathSelector {
 public:
  explicit PathSelector(Direction direction) : direction_(direction) {}
  void set_table(PathTable table);
  // `usable`: in the order of preference where there is no table. Never empty.
  PathChoice choose(const std::vector<PathCost>& usable, std::optional<Path> asked);
  // A transfer of `choice` took so long.
  void learn(const PathChoice& choice, double seconds);

 private:
  const Direction direction_;
  PathTable table_;
  // How much longer than predicted transfers of a path take of late, as a factor. One that is far under its cell is
  // demoted by it; it decays while the path is not taken, so that it gets another try.
  std::array<double, kPaths.size()> slower_{1, 1, 1};
};

std::string explain(const PathChoice& choice, bool is_cuda);

}  // namespace kvo
