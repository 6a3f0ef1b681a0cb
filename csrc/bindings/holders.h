// Ownership rules for objects that Python holds.
#pragma once
#include <pybind11/pybind11.h>

#include <memory>

#include "base/owner_process.h"

namespace kvo {

// Destruction may wait for threads, so it runs without the GIL; in a forked child it does not run at all.
template <class T>
std::shared_ptr<T> owned_by_python(std::unique_ptr<T> object) {
  return std::shared_ptr<T>(object.release(), [owner = OwnerProcess()](T* pointer) {
    if (owner.forked()) return;
    if (!PyGILState_Check()) return delete pointer;
    pybind11::gil_scoped_release release;
    delete pointer;
  });
}

}  // namespace kvo
