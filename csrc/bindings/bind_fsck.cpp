// What `kvoffload fsck` and `kvoffload ls` read: a manifest, and the records of a slab, from outside.
#include <pybind11/pybind11.h>
#include <pybind11/stl.h>

#include <memory>
#include <optional>
#include <string>
#include <tuple>
#include <vector>

#include "bindings/bindings.h"
#include "bindings/errors.h"
#include "bindings/without_gil.h"
#include "layout/extents.h"
#include "ledger/manifest_content.h"
#include "storage/slab_reader.h"

namespace py = pybind11;

namespace kvo {
namespace {

using Slots = std::vector<std::int64_t>;

py::dict manifest_dict(const std::string& path, std::uint64_t boot) {
  std::optional<Result<ManifestContent>> read;
  {
    py::gil_scoped_release release;
    read.emplace(read_manifest(path, boot));
  }
  const ManifestContent content = value_or_throw(std::move(*read));
  py::list chunks;
  for (const CommittedChunk& chunk : content.chunks) {
    chunks.append(py::make_tuple(chunk.group, py::bytes(chunk.key), chunk.slot, chunk.sequence));
  }
  py::dict dict;
  dict["chunks"] = chunks;
  dict["fingerprint"] = py::str(py::bytes(content.header.fingerprint).attr("decode")("utf-8", "replace"));
  dict["identity"] = content.header.identity;
  dict["epoch"] = content.header.epoch;
  dict["bytes"] = content.bytes;
  dict["torn_bytes"] = content.torn_bytes;
  dict["damaged_bytes"] = content.damaged_bytes;
  dict["unsynced_chunks"] = content.unsynced_chunks;
  return dict;
}

// A slab, and which offset a slot's number stands for.
struct BoundSlabReader {
  std::unique_ptr<SlabReader> reader;
  ExtentPlan extents;

  // Empty: there is no such slot.
  std::optional<std::int64_t> offset_of(int group, std::int64_t slot) const {
    if (group < 0 || group >= groups() || slot < 0 || slot >= slots(group)) return {};
    return extents.offset_of(group, slot);
  }
  int groups() const { return static_cast<int>(extents.slot_bytes.size()); }
  std::int64_t slots(int group) const { return extents.slots_below(group, reader->plan().bytes); }
};

std::unique_ptr<BoundSlabReader> open_slab(const std::vector<std::string>& paths, bool writable) {
  auto bound = std::make_unique<BoundSlabReader>();
  bound->reader = value_or_throw(SlabReader::open(paths, writable));
  const SlabPlan& plan = bound->reader->plan();
  bound->extents = {plan.extent_bytes, plan.slot_bytes};
  return bound;
}

const char* check(BoundSlabReader& self, int group, std::int64_t slot, const std::string& key, std::int64_t sequence,
                  std::int64_t epoch) {
  const auto offset = self.offset_of(group, slot);
  const SlotState state =
      offset ? self.reader->check({group, key, 0, sequence, epoch}, *offset) : SlotState::unreadable;
  return kSlotStates[static_cast<int>(state)];
}

// Slots of [begin, end) at whose end a trailer of the group lies, whether its record is right or not.
Slots records(const BoundSlabReader& self, int group, std::int64_t begin, std::int64_t end) {
  Slots found;
  for (std::int64_t slot = begin; slot < end; ++slot) {
    const auto offset = self.offset_of(group, slot);
    if (!offset) break;
    const auto trailer = self.reader->trailer(group, *offset);
    if (trailer && trailer->group == group) found.push_back(slot);
  }
  return found;
}

void erase(BoundSlabReader& self, int group, const Slots& slots) {
  without_gil([&]() -> Status {
    for (const std::int64_t slot : slots) {
      const auto offset = self.offset_of(group, slot);
      if (!offset) return Status(Code::invalid, "there is no slot " + std::to_string(slot));
      KVO_TRY(self.reader->erase(group, *offset));
    }
    return self.reader->sync();
  });
}

}  // namespace

void bind_fsck(py::module_& m) {
  m.def("read_manifest", &manifest_dict, py::arg("path"), py::arg("boot") = 0);
  py::class_<BoundSlabReader>(m, "SlabReader")
      .def(py::init(&open_slab), py::arg("paths"), py::kw_only(), py::arg("writable") = false)
      .def_property_readonly("identity", [](const BoundSlabReader& self) { return self.reader->identity(); })
      .def_property_readonly("rank", [](const BoundSlabReader& self) { return self.reader->owner().rank; })
      .def_property_readonly("fingerprint",
                             [](const BoundSlabReader& self) { return self.reader->owner().fingerprint; })
      .def_property_readonly("extent_bytes", [](const BoundSlabReader& self) { return self.extents.extent_bytes; })
      .def_property_readonly("slot_bytes", [](const BoundSlabReader& self) { return self.extents.slot_bytes; })
      .def_property_readonly("slots",
                             [](const BoundSlabReader& self) {
                               Slots slots;
                               for (int group = 0; group < self.groups(); ++group) slots.push_back(self.slots(group));
                               return slots;
                             })
      .def("check", &check, py::arg("group"), py::arg("slot"), py::arg("key"), py::arg("sequence"), py::arg("epoch"),
           py::call_guard<py::gil_scoped_release>())
      .def("records", &records, py::arg("group"), py::arg("begin"), py::arg("end"),
           py::call_guard<py::gil_scoped_release>())
      .def("erase", &erase, py::arg("group"), py::arg("slots"));
}

}  // namespace kvo
