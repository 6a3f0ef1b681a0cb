// After fork() a child has the objects but none of the threads: it must neither use nor clean them up.
//
// Every call asks, several times, and getpid() is a system call (0.2 us in a virtual machine): forks are counted
// instead.
#pragma once
#include <unistd.h>

#include <string>

#include "base/status.h"

namespace kvo {

class OwnerProcess {
 public:
  OwnerProcess();
  bool forked() const;
  Status check(const char* what) const {
    if (!forked()) return {};
    return Status(Code::forked, std::string(what) + " was made in process " + std::to_string(pid_) +
                                    " and used in its fork " + std::to_string(getpid()) +
                                    ": make it in the process that uses it");
  }

 private:
  pid_t pid_;
  unsigned forks_;
};

// Deleter of objects that own threads: in a forked child their locks may be held for ever, so they are left alone.
template <class T>
struct LeakInFork {
  OwnerProcess owner;
  void operator()(T* object) const {
    if (!owner.forked()) delete object;
  }
};

}  // namespace kvo
