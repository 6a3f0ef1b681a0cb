#include "transfer/path_selector.h"

#include <algorithm>
#include <cstdio>

namespace kvo {

namespace {

constexpr double kLearn = 1.0 / 16, kForget = 1.0 / 512;
constexpr double kFarUnder = 2;  // below this factor a path is merely busy: both directions at once, a model beside it
constexpr double kMost = 16;

std::size_t index(Path path) { return static_cast<std::size_t>(path); }

}  // namespace

void PathSelector::set_table(PathTable table) {
  table_ = std::move(table);
  slower_.fill(1);
}

PathChoice PathSelector::choose(const std::vector<PathCost>& usable, std::optional<Path> asked) {
  PathChoice choice;
  choice.path = asked.value_or(usable.front().path);
  choice.span_bytes = usable.back().span_bytes, choice.spans = usable.back().spans;
  double least = 0;
  for (const PathCost& cost : usable) {
    const auto predicted = table_.seconds(direction_, cost.path, cost.span_bytes, cost.spans);
    if (!predicted) continue;
    const double slower = slower_[index(cost.path)];
    const double seconds = *predicted * (slower > kFarUnder ? slower : 1);
    choice.seconds[index(cost.path)] = seconds;
    const bool taken = asked ? cost.path == *asked : least == 0 || seconds < least;
    if (!taken) continue;
    choice.path = cost.path, choice.predicted_seconds = *predicted, least = seconds;
  }
  if (asked) choice.reason = PathChoice::Reason::asked;
  if (!asked && usable.size() > 1 && least > 0) choice.reason = PathChoice::Reason::table;
  for (const Path path : kPaths)
    if (path != choice.path) slower_[index(path)] += (1 - slower_[index(path)]) * kForget;
  return choice;
}

void PathSelector::learn(const PathChoice& choice, double seconds) {
  if (choice.predicted_seconds <= 0) return;
  double& slower = slower_[index(choice.path)];
  slower += (std::clamp(seconds / choice.predicted_seconds, 0.0, kMost) - slower) * kLearn;
}

std::string explain(const PathChoice& choice, bool is_cuda) {
  if (choice.reason == PathChoice::Reason::asked) return "asked for";
  if (choice.reason == PathChoice::Reason::only) return "no other way for this group, or no table of paths";
  std::array<Path, kPaths.size()> order = kPaths;
  std::sort(order.begin(), order.end(),
            [&](Path a, Path b) { return choice.seconds[index(a)] < choice.seconds[index(b)]; });
  std::string text = "auto:";
  for (const Path path : order) {
    char part[64];
    if (choice.seconds[index(path)] <= 0) continue;
    std::snprintf(part, sizeof part, "%s %.*s %.3g ms", text.back() == ':' ? "" : ",",
                  static_cast<int>(name_of(path, is_cuda).size()), name_of(path, is_cuda).data(),
                  choice.seconds[index(path)] * 1e3);
    text += part;
  }
  return text + " for " + std::to_string(choice.spans) + " pages of " + std::to_string(choice.span_bytes) + " bytes";
}

}  // namespace kvo
