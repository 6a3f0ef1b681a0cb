#include <pybind11/pybind11.h>

#include "bindings/bindings.h"
#include "bindings/deadlines.h"
#include "bindings/errors.h"
#include "bindings/holders.h"
#include "bindings/without_gil.h"
#include "memory/arena.h"

namespace py = pybind11;

namespace kvo {

static std::shared_ptr<Arena> make_arena(std::shared_ptr<Device> device, ArenaOptions options) {
  py::gil_scoped_release release;
  auto arena = Arena::create(std::move(device), options);
  if (!arena.ok()) {
    py::gil_scoped_acquire acquire;
    throw_error(arena.status());
  }
  return owned_by_python(std::move(*arena));
}

static py::dict report_dict(const Arena& arena) {
  ArenaReport report;
  {
    py::gil_scoped_release release;  // may wait for a close()
    report = arena.report();
  }
  py::dict out;
  out["bytes"] = report.bytes;
  out["ready_bytes"] = report.ready_bytes;
  out["pinned"] = report.pinned;
  out["huge_pages"] = report.huge_pages;
  out["numa_node"] = report.numa_node;
  out["warning"] = report.warning;
  out["failure"] = report.failure;
  out["seconds"] = report.seconds;
  out["first_ready_seconds"] = report.first_ready_seconds;
  return out;
}

void bind_memory(py::module_& m) {
  py::class_<Arena, std::shared_ptr<Arena>>(m, "Arena")
      .def(py::init([](std::shared_ptr<Device> device, std::int64_t bytes, bool huge_pages, bool background, bool held,
                       int threads, std::string cgroup_root, std::string proc_root) {
             ArenaOptions options;
             options.bytes = bytes;
             options.huge_pages = huge_pages;
             options.background = background;
             options.held = held;
             options.threads = threads;
             options.cgroup_root = std::move(cgroup_root);
             options.proc_root = std::move(proc_root);
             return make_arena(std::move(device), std::move(options));
           }),
           py::arg("device"), py::arg("bytes"), py::kw_only(), py::arg("huge_pages") = true,
           py::arg("background") = true, py::arg("held") = false, py::arg("threads") = 16,
           py::arg("cgroup_root") = "/sys/fs/cgroup", py::arg("proc_root") = "/proc")
      .def_property_readonly("bytes", &Arena::bytes)
      .def_property_readonly("ready_bytes", &Arena::ready_bytes)
      .def_property_readonly("address",
                             [](const Arena& arena) { return reinterpret_cast<std::uintptr_t>(arena.base()); })
      .def(
          "wait_ready",
          [](Arena& arena, std::int64_t bytes, double timeout_seconds) {
            without_gil([&] { return arena.wait_ready(bytes, deadline_in(timeout_seconds)); });
          },
          py::arg("bytes"), py::arg("timeout_seconds"))
      .def("fill_rest", &Arena::fill_rest)
      .def("leak", &Arena::leak, py::call_guard<py::gil_scoped_release>())
      .def("report", &report_dict);
}

}  // namespace kvo
