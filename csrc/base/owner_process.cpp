#include "base/owner_process.h"

#include <pthread.h>

#include <atomic>

namespace kvo {

namespace {

std::atomic<unsigned> forks{0};
// Where the handler could not be installed, the process is asked who it is.
const bool counted = pthread_atfork(nullptr, nullptr, [] { ++forks; }) == 0;

}  // namespace

OwnerProcess::OwnerProcess() : pid_(getpid()), forks_(forks) {}

bool OwnerProcess::forked() const { return counted ? forks != forks_ : getpid() != pid_; }

}  // namespace kvo
