// Layout: geometry and span planning, as layout.py, the ledger and the tests see them.
#include <pybind11/numpy.h>
#include <pybind11/pybind11.h>
#include <pybind11/stl.h>

#include <string>
#include <tuple>
#include <utility>
#include <vector>

#include "bindings/bindings.h"
#include "bindings/errors.h"
#include "layout/extents.h"
#include "layout/geometry.h"

namespace py = pybind11;

namespace kvo {
namespace {

using Ids = py::array_t<std::int64_t, py::array::c_style>;

std::span<const std::int64_t> view_of(const Ids& ids) { return {ids.data(), static_cast<std::size_t>(ids.size())}; }

GroupGeometry make_group(std::vector<PageRun> pages, std::int64_t num_blocks, std::int64_t blocks_per_chunk) {
  GroupGeometry group{std::move(pages), num_blocks, blocks_per_chunk};
  throw_if_error(check_group(group));
  return group;
}

std::vector<std::tuple<std::uintptr_t, std::int64_t, std::int64_t>> spans_of(const GroupGeometry& group,
                                                                             const Ids& blocks, const Ids& slot_offsets,
                                                                             std::int64_t skip_blocks,
                                                                             std::int64_t cut_bytes) {
  if (blocks.size() != slot_offsets.size() * group.blocks_per_chunk || skip_blocks < 0 ||
      skip_blocks > group.blocks_per_chunk || cut_bytes < 0) {
    throw_error(
        {Code::invalid, "blocks must have blocks_per_chunk (" + std::to_string(group.blocks_per_chunk) +
                            ") entries for each slot offset, skip_blocks be 0 to that, cut_bytes not negative"});
  }
  std::vector<Span> spans;
  plan_spans(group, {view_of(blocks), view_of(slot_offsets), skip_blocks}, cut_bytes, spans);
  std::vector<std::tuple<std::uintptr_t, std::int64_t, std::int64_t>> result;
  for (const Span& span : spans) result.emplace_back(span.device, span.host, span.bytes);
  return result;
}

ExtentPlan make_extents(std::int64_t bytes, std::vector<std::int64_t> slot_bytes) {
  for (const std::int64_t slot : slot_bytes) {
    if (slot < 1)
      throw_error({Code::invalid, "slot_bytes holds " + std::to_string(slot) + "; each must be at least 1"});
  }
  return plan_extents(bytes, std::move(slot_bytes));
}

template <auto Method>
auto checked(const ExtentPlan& plan, int group, auto... rest) {
  if (group < 0 || group >= static_cast<int>(plan.slot_bytes.size())) {
    throw_error({Code::invalid, "group is " + std::to_string(group) + "; there are " +
                                    std::to_string(plan.slot_bytes.size()) + " groups"});
  }
  return (plan.*Method)(group, rest...);
}

void bind_geometry(py::module_& m) {
  py::class_<PageRun>(m, "PageRun", "One page of every block: block b's bytes begin at address + b * block_stride.")
      .def(py::init<std::uintptr_t, std::int64_t, std::int64_t>(), py::arg("address"), py::arg("block_stride"),
           py::arg("bytes"))
      .def_readonly("address", &PageRun::address)
      .def_readonly("block_stride", &PageRun::block_stride)
      .def_readonly("bytes", &PageRun::bytes)
      .def(
          "__eq__", [](const PageRun& a, const PageRun& b) { return a == b; }, py::is_operator())
      .def("__repr__", [](const PageRun& page) {
        return "PageRun(address=" + std::to_string(page.address) +
               ", block_stride=" + std::to_string(page.block_stride) + ", bytes=" + std::to_string(page.bytes) + ")";
      });
  py::class_<GroupGeometry>(m, "GroupGeometry", "The pages of a KV group and how many blocks make a chunk.")
      .def(py::init(&make_group), py::arg("pages"), py::arg("num_blocks"), py::arg("blocks_per_chunk"))
      .def_readonly("pages", &GroupGeometry::pages)
      .def_readonly("num_blocks", &GroupGeometry::num_blocks)
      .def_readonly("blocks_per_chunk", &GroupGeometry::blocks_per_chunk)
      .def_property_readonly("block_bytes", &GroupGeometry::block_bytes)
      .def_property_readonly("payload_bytes", &GroupGeometry::payload_bytes)
      .def_property_readonly("slot_bytes", &GroupGeometry::slot_bytes);
  m.def(
      "pages_of",
      [](std::uintptr_t address, std::int64_t item_bytes, std::vector<std::int64_t> shape,
         std::vector<std::int64_t> strides_bytes, int block_dim) {
        return value_or_throw(pages_of({address, item_bytes, std::move(shape), std::move(strides_bytes), block_dim}));
      },
      py::arg("address"), py::arg("item_bytes"), py::arg("shape"), py::arg("strides_bytes"), py::arg("block_dim"),
      "The contiguous pages of one tensor, lowest address first.");
  m.def(
      "merge_pages",
      [](std::vector<PageRun> pages, std::int64_t num_blocks) {
        return value_or_throw(merge_pages(std::move(pages), num_blocks));
      },
      py::arg("pages"), py::arg("num_blocks"), "Identical pages dropped, touching ones joined, overlaps refused.");
  m.def("plan_spans", &spans_of, py::arg("group"), py::arg("blocks"), py::arg("slot_offsets"),
        py::arg("skip_blocks") = 0, py::arg("cut_bytes") = 0,
        "Tests only: the copies of a transfer as (device address, arena offset, bytes).");
}

}  // namespace

void bind_layout(py::module_& m) {
  bind_geometry(m);
  m.attr("TRAILER_BYTES") = kTrailerBytes;
  m.attr("SLOT_ALIGN") = kSlotAlign;
  py::class_<ExtentPlan>(m, "ExtentPlan", "How a tier is cut into extents and slots.")
      .def_readonly("extent_bytes", &ExtentPlan::extent_bytes)
      .def_readonly("slot_bytes", &ExtentPlan::slot_bytes)
      .def(
          "slots_per_extent",
          [](const ExtentPlan& plan, int group) { return checked<&ExtentPlan::slots_per_extent>(plan, group); },
          py::arg("group"))
      .def(
          "extent_of",
          [](const ExtentPlan& plan, int group, std::int64_t slot) {
            return checked<&ExtentPlan::extent_of>(plan, group, slot);
          },
          py::arg("group"), py::arg("slot"))
      .def(
          "offset_of",
          [](const ExtentPlan& plan, int group, std::int64_t slot) {
            return checked<&ExtentPlan::offset_of>(plan, group, slot);
          },
          py::arg("group"), py::arg("slot"))
      .def(
          "usable_slots",
          [](const ExtentPlan& plan, int group, std::int64_t extent, std::int64_t ready_bytes) {
            return checked<&ExtentPlan::usable_slots>(plan, group, extent, ready_bytes);
          },
          py::arg("group"), py::arg("extent"), py::arg("ready_bytes"));
  m.def("plan_extents", &make_extents, py::arg("bytes"), py::arg("slot_bytes"));
}

}  // namespace kvo
