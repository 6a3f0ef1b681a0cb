#include <pybind11/pybind11.h>

#include "bindings/bindings.h"
#include "bindings/errors.h"
#include "bindings/holders.h"
#include "bindings/without_gil.h"
#include "device/host_device.h"
#include "kernels/spin.h"

namespace py = pybind11;

namespace kvo {

static void bind_host_stream(py::module_& m) {
  py::class_<HostStream, std::shared_ptr<HostStream>>(
      m, "HostStream", "A thread as a stream of the host device: what is enqueued runs in order, one after the other.")
      .def(py::init([] { return owned_by_python(std::make_unique<HostStream>()); }))
      .def_property_readonly("handle", &HostStream::handle)
      .def("delay", &HostStream::delay, py::arg("seconds"), "Enqueue a pause, as a slow kernel would be.")
      .def(
          "fill",
          [](HostStream& stream, std::uintptr_t address, std::int64_t bytes, std::uint8_t value) {
            stream.fill(reinterpret_cast<std::byte*>(address), bytes, value);
          },
          py::arg("address"), py::arg("bytes"), py::arg("value"),
          "Enqueue setting [address, address + bytes) to value. The caller keeps the memory alive.")
      .def(
          "copy",
          [](HostStream& stream, std::uintptr_t dst, std::uintptr_t src, std::int64_t bytes) {
            const CopySpan span{reinterpret_cast<std::byte*>(dst), reinterpret_cast<const std::byte*>(src), bytes};
            throw_if_error(stream.copy(std::span(&span, 1), Direction::load));
          },
          py::arg("dst"), py::arg("src"), py::arg("bytes"), "Enqueue one copy between addresses.")
      .def(
          "synchronize", [](HostStream& stream) { without_gil([&] { return stream.synchronize(); }); },
          "Wait until all that is enqueued has run.");
}

void bind_device(py::module_& m) {
  py::class_<Device, std::shared_ptr<Device>>(m, "Device")
      .def_property_readonly("name", &Device::name)
      .def_property_readonly("numa_node", &Device::numa_node)
      .def("identity", &Device::identity)
      .def("link_gb_per_s", &Device::link_gb_per_s);
  m.def("host_device", &make_host_device);
  m.def("cuda_device", [](int ordinal) { return value_or_throw(make_cuda_device(ordinal)); }, py::arg("ordinal"));
#ifdef KVO_WITH_CUDA
  m.attr("with_cuda") = true;
#else
  m.attr("with_cuda") = false;
#endif
  m.def(
      "cuda_spin",
      [](int ordinal, StreamHandle stream, double seconds) {
        throw_if_error(launch_spin(ordinal, stream, static_cast<std::int64_t>(seconds * 1e9)));
      },
      py::arg("ordinal"), py::arg("stream"), py::arg("seconds"),
      "Tests and benchmarks: a kernel that only takes time.");
  bind_host_stream(m);
}

}  // namespace kvo
