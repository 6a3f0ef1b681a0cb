// Keys are Python bytes, read in place: the tuple made of them keeps them alive while the GIL is released.
#pragma once
#include <pybind11/pybind11.h>

#include <string>
#include <string_view>
#include <vector>

#include "bindings/errors.h"
#include "ledger/directory.h"

namespace kvo {

constexpr pybind11::ssize_t kMinKeyBytes = 16;
constexpr std::size_t kKeysWithGil = 64;  // fewer than these take less time than giving the GIL away

struct KeyList {
  explicit KeyList(const pybind11::object& keys)
      : owner(pybind11::reinterpret_steal<pybind11::tuple>(PySequence_Tuple(keys.ptr()))) {
    if (!owner) throw pybind11::error_already_set();
    views.reserve(owner.size());
    for (std::size_t i = 0; i < owner.size(); ++i) {
      PyObject* key = PyTuple_GET_ITEM(owner.ptr(), static_cast<pybind11::ssize_t>(i));
      if (!PyBytes_Check(key) || PyBytes_GET_SIZE(key) < kMinKeyBytes) throw_error(refusal(i, key));
      views.emplace_back(PyBytes_AS_STRING(key), static_cast<std::size_t>(PyBytes_GET_SIZE(key)));
    }
  }

  static Status refusal(std::size_t index, PyObject* key) {
    const std::string given =
        PyBytes_Check(key) ? std::to_string(PyBytes_GET_SIZE(key)) + " bytes long" : "a " + type_name(key);
    return {Code::invalid, "keys[" + std::to_string(index) + "] is " + given + ": a key is bytes, at least " +
                               std::to_string(kMinKeyBytes) + " long, a cryptographic hash of all that changes the KV"};
  }

  static std::string type_name(PyObject* object) { return Py_TYPE(object)->tp_name; }

  pybind11::tuple owner;
  std::vector<std::string_view> views;
};

// Calls `call(keys)` without the GIL when there are many.
template <class Call>
auto with_keys(const pybind11::object& given, Call call) {
  const KeyList keys(given);
  if (keys.views.size() < kKeysWithGil) return call(Directory::Keys(keys.views));
  pybind11::gil_scoped_release release;
  return call(Directory::Keys(keys.views));
}

}  // namespace kvo
