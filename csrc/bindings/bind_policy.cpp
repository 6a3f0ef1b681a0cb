// Eviction policies on request traces, without bytes.
#include <pybind11/pybind11.h>
#include <pybind11/stl.h>

#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "bindings/bindings.h"
#include "bindings/errors.h"
#include "ledger/policy_replay.h"

namespace py = pybind11;

namespace kvo {

static std::unique_ptr<PolicyReplay> make_replay(const std::string& name, std::int64_t entries) {
  std::unique_ptr<EvictionPolicy> policy = make_policy(name);
  if (!policy) throw_error({Code::invalid, "policy = \"" + name + "\": it is one of lru, s3fifo, arc and adaptive"});
  if (entries < 1) throw_error({Code::invalid, "entries = " + std::to_string(entries) + ": at least 1 must fit"});
  return std::make_unique<PolicyReplay>(std::move(policy), entries);
}

void bind_policies(py::module_& m) {
  py::class_<PolicyReplay>(m, "PolicyReplay")
      .def(py::init(&make_replay), py::arg("policy"), py::arg("entries"))
      .def(
          "request", [](PolicyReplay& replay, const std::vector<std::uint64_t>& keys) { return replay.request(keys); },
          py::arg("keys"))
      .def("__len__", &PolicyReplay::size)
      .def("__contains__", &PolicyReplay::contains, py::arg("key"))
      .def_property_readonly("policy_bytes", [](const PolicyReplay& replay) { return replay.policy().bytes(); });
}

}  // namespace kvo
