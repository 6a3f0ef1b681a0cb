// For `kvoffload bench` and bench/: device memory without a framework, copies without anything of ours around them.
#include <pybind11/pybind11.h>
#include <pybind11/stl.h>

#include "bindings/bindings.h"
#include "bindings/errors.h"
#include "transfer/raw_copies.h"

namespace py = pybind11;

namespace kvo {

using RawCopy = std::tuple<std::uintptr_t, std::uintptr_t, std::int64_t>;  // to, from, bytes

template <class Call>
static auto released(Call call) {
  auto result = [&] {
    py::gil_scoped_release release;
    return call();
  }();
  return value_or_throw(std::move(result));
}

static std::vector<double> raw_copies(std::shared_ptr<Device> device, bool store, const std::vector<RawCopy>& copies,
                                      const std::string& how, int repeats) {
  if (how != "loop" && how != "batch") throw_error(Status(Code::invalid, "how '" + how + "': give loop or batch"));
  if (repeats < 1) throw_error(Status(Code::invalid, "repeats " + std::to_string(repeats) + ": give 1 or more"));
  std::vector<CopySpan> spans;
  for (const auto& [to, from, bytes] : copies)
    spans.push_back({reinterpret_cast<std::byte*>(to), reinterpret_cast<const std::byte*>(from), bytes});
  const RawWay way = how == "loop" ? RawWay::loop : RawWay::batch;
  return released(
      [&] { return time_raw_copies(*device, store ? Direction::store : Direction::load, spans, way, repeats); });
}

void bind_bench(py::module_& m) {
  py::class_<DeviceMemory>(m, "DeviceMemory", "Freed with the object.")
      .def_property_readonly(
          "address", [](const DeviceMemory& memory) { return reinterpret_cast<std::uintptr_t>(memory.address()); });
  m.def(
      "device_alloc",
      [](const std::shared_ptr<Device>& device, std::int64_t bytes) {
        return released([&] { return device->allocate(bytes); });
      },
      py::arg("device"), py::arg("bytes"));
  m.def("raw_copies", &raw_copies, py::arg("device"), py::arg("store"), py::arg("copies"), py::arg("how"),
        py::arg("repeats"), "Seconds of each run of (to, from, bytes) copies, from call to visible.");
  m.def(
      "ceiling_gb_per_s",
      [](std::shared_ptr<Device> device, std::int64_t bytes, bool both) {
        const Rates rates = released([&] { return measure_ceiling(device, bytes, both); });
        return std::pair(rates.store_gb_per_s, rates.load_gb_per_s);
      },
      py::arg("device"), py::arg("bytes"), py::arg("both"),
      "GB/s (store, load) of contiguous copies of `bytes`, one way at a time or both at once.");
}

}  // namespace kvo
