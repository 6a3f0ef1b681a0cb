// What went wrong, as a value: the data path returns Status, only the bindings turn it into an exception.
#pragma once
#include <optional>
#include <string>
#include <utility>

namespace kvo {

// One code per thing a caller can do about it; kvoffload/errors.py maps each to one exception.
enum class Code {
  ok,
  invalid,      // the input is wrong: change it
  unsupported,  // understood, but this build or machine cannot do it
  queue_full,   // wait for transfers to finish, or raise queue_depth
  closed,       // the object was closed
  timeout,      // a deadline passed
  memory,       // a memory budget or limit is too small
  device,       // a CUDA call or a copy failed
  cancelled,    // cancelled before it started
  forked,       // used in a child process after fork
};

class [[nodiscard]] Status {
 public:
  Status() = default;
  Status(Code code, std::string message) : code_(code), message_(std::move(message)) {}
  bool ok() const { return code_ == Code::ok; }
  Code code() const { return code_; }
  const std::string& message() const { return message_; }

 private:
  Code code_ = Code::ok;
  std::string message_;
};

// A value or the Status that says why there is none.
template <class T>
class [[nodiscard]] Result {
 public:
  Result(T value) : value_(std::move(value)) {}
  Result(Status status) : status_(std::move(status)) {}
  bool ok() const { return value_.has_value(); }
  const Status& status() const { return status_; }
  T& operator*() { return *value_; }
  T* operator->() { return &*value_; }

 private:
  Status status_;
  std::optional<T> value_;
};

#define KVO_TRY(expression)                                                           \
  do {                                                                                \
    if (::kvo::Status kvo_status = (expression); !kvo_status.ok()) return kvo_status; \
  } while (false)

}  // namespace kvo
