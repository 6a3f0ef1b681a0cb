// One submitted batch of copies, as its lane and its caller see it.
#pragma once
#include <atomic>
#include <memory>
#include <string>

#include "device/device.h"
#include "transfer/path_selector.h"
#include "transfer/request_check.h"

namespace kvo {

struct TransferResult {
  bool ok = false;
  std::int64_t bytes = 0;
  double seconds = 0;  // on the device, from the first copy's start to the last one's end
  PathChoice choice;
  Status status;  // why not ok
};

// queued -> starting -> enqueued -> finished; cancel: queued -> finished. Written under the lane's mutex; read without
// it only to learn that it is not `enqueued` yet. The request (what to copy) belongs to the lane's thread from
// `starting` on, all else is guarded by that mutex.
enum class TransferState { queued, starting, enqueued, finished };

struct Transfer {
  // The request.
  std::int64_t job = 0;  // > 0: reported by poll()
  int group = 0;
  std::int64_t skip_blocks = 0;
  std::optional<Path> asked_path;
  RequestIds ids;
  std::shared_ptr<Event> after;  // the caller's stream, when the transfer was asked for

  std::atomic<TransferState> state = TransferState::queued;
  bool endless = false;               // its end could not be recorded: its copies may run for ever
  std::shared_ptr<Event> start, end;  // around the copies; exist from `enqueued` on
  Status status;
  TransferResult result;
};

}  // namespace kvo
