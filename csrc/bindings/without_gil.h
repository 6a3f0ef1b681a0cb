// Calls that may wait: without the interpreter lock, their Status as an exception.
#pragma once
#include <pybind11/pybind11.h>

#include "bindings/errors.h"

namespace kvo {

template <class Call>
void without_gil(Call call) {
  Status status;
  {
    pybind11::gil_scoped_release release;
    status = call();
  }
  throw_if_error(status);
}

}  // namespace kvo
