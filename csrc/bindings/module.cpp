#include <pybind11/pybind11.h>

#include "base/fault.h"
#include "bindings/bindings.h"
#include "bindings/errors.h"

namespace py = pybind11;

namespace kvo {

static const char* exception_name(Code code) {
  switch (code) {
    case Code::invalid:
      return "InvalidInput";
    case Code::unsupported:
      return "Unsupported";
    case Code::queue_full:
      return "QueueFull";
    case Code::closed:
      return "Closed";
    case Code::timeout:
      return "WaitTimeout";
    case Code::memory:
      return "MemoryLimit";
    case Code::device:
      return "DeviceError";
    case Code::cancelled:
      return "Cancelled";
    case Code::forked:
      return "Forked";
    case Code::ok:
      break;
  }
  return "KVOffloadError";
}

void throw_error(const Status& status) {
  py::object type = py::module_::import("kvoffload.errors").attr(exception_name(status.code()));
  PyErr_SetString(type.ptr(), status.message().c_str());
  throw py::error_already_set();
}

}  // namespace kvo

PYBIND11_MODULE(_C, m) {
  m.doc() = "kvoffload's core; the public API is the package around it.";
  kvo::bind_layout(m);
  kvo::bind_device(m);
  kvo::bind_memory(m);
  kvo::bind_ledger(m);
  kvo::bind_group_hits(m);
  kvo::bind_manifest(m);
  kvo::bind_storage(m);
  kvo::bind_fsck(m);
  kvo::bind_policies(m);
  kvo::bind_transfer(m);
  kvo::bind_bench(m);
  m.def("fault_arm", &kvo::fault::arm, py::arg("point"), py::arg("skip"), py::arg("count"),
        "Tests only: after `skip` passes the next `count` passes through a named point fail.");
  m.def("fault_disarm_all", &kvo::fault::disarm_all);
}
