// Status -> the exception of kvoffload/errors.py that says what the caller can do about it.
#pragma once
#include <utility>

#include "base/status.h"

namespace kvo {

[[noreturn]] void throw_error(const Status& status);  // needs the GIL

inline void throw_if_error(const Status& status) {
  if (!status.ok()) throw_error(status);
}

template <class T>
T value_or_throw(Result<T> result) {
  throw_if_error(result.status());
  return std::move(*result);
}

}  // namespace kvo
