// Exceptions as a Status, where one must not pass.
#pragma once
#include <exception>
#include <string>

#include "base/status.h"

namespace kvo {

// No exception leaves the lane's thread: what fails for lack of memory fails one transfer.
template <class Call>
Status guarded(Call call) {
  try {
    return call();
  } catch (const std::exception& error) {
    return Status(Code::memory, std::string("out of memory for a transfer: ") + error.what());
  }
}

}  // namespace kvo
