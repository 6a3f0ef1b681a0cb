// Lookups over several groups at once.
#include <pybind11/pybind11.h>
#include <pybind11/stl.h>

#include <optional>
#include <string>
#include <tuple>
#include <vector>

#include "bindings/bindings.h"
#include "bindings/errors.h"
#include "bindings/key_list.h"

namespace py = pybind11;

namespace kvo {

namespace {

constexpr std::int64_t kMostTokens = std::int64_t{1} << 31;  // products of two do not overflow

// As kvoffload.hits.GroupKeys.
using GivenGroup = std::tuple<int, py::object, std::int64_t, std::optional<std::int64_t>>;

void check_tokens(const char* name, std::int64_t tokens, std::int64_t least) {
  if (tokens >= least && tokens <= kMostTokens) return;
  throw_error({Code::invalid, std::string(name) + " = " + std::to_string(tokens) + ": give " + std::to_string(least) +
                                  " to " + std::to_string(kMostTokens)});
}

GroupNeeds needs_of(std::int64_t tokens_per_chunk, std::optional<std::int64_t> window_tokens) {
  check_tokens("tokens_per_chunk", tokens_per_chunk, 1);
  if (window_tokens) check_tokens("window_tokens", *window_tokens, 0);
  return {tokens_per_chunk, window_tokens.value_or(kWholePrefix)};
}

// (tokens in host memory, tokens in one of the tiers, keys that the first need, their hold)
py::tuple lookup_groups(Directory& self, const std::vector<GivenGroup>& given, std::int64_t start_tokens, bool hold) {
  check_tokens("start_tokens", start_tokens, 0);
  std::vector<KeyList> keys;
  std::vector<GroupKeys> groups;
  keys.reserve(given.size());  // groups point into it
  for (const auto& [group, list, tokens_per_chunk, window_tokens] : given)
    groups.push_back({group, keys.emplace_back(list).views, needs_of(tokens_per_chunk, window_tokens)});
  Directory::GroupHits hits;
  {
    py::gil_scoped_release release;
    hits = self.lookup_groups(groups, start_tokens, hold);
  }
  return py::make_tuple(hits.host_tokens, hits.tokens, hits.held_keys, hits.hold);
}

}  // namespace

void bind_group_hits(py::module_& m) {
  py::class_<Directory> directory = m.attr("Directory");
  directory.def("lookup_groups", lookup_groups, py::arg("groups"), py::arg("start_tokens"), py::arg("hold"));
}

}  // namespace kvo
