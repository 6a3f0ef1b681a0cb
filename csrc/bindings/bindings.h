// The module is assembled from one function a room.
#pragma once
#include <pybind11/pybind11.h>

namespace kvo {

void bind_device(pybind11::module_& m);
void bind_layout(pybind11::module_& m);
void bind_ledger(pybind11::module_& m);
void bind_group_hits(pybind11::module_& m);
void bind_manifest(pybind11::module_& m);
void bind_storage(pybind11::module_& m);
void bind_fsck(pybind11::module_& m);
void bind_policies(pybind11::module_& m);
void bind_memory(pybind11::module_& m);
void bind_transfer(pybind11::module_& m);
void bind_bench(pybind11::module_& m);

}  // namespace kvo
