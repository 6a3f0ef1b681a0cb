// The two rings that this process shares with the kernel (io_uring), by raw system calls: no library has to be there.
// One thread makes, uses and destroys it.
#pragma once
#include <chrono>
#include <cstdint>
#include <memory>
#include <span>
#include <utility>

#include "base/status.h"
#include "base/unique_fd.h"

struct io_uring_sqe;
struct io_uring_cqe;

namespace kvo {

class Uring {
 public:
  using Deadline = std::chrono::steady_clock::time_point;

  // unsupported: this kernel, container or limit has none; the message says why.
  static Result<std::unique_ptr<Uring>> open(unsigned entries);
  ~Uring();
  Uring(const Uring&) = delete;

  // Room for one more request, zeroed: never more than `entries` are handed over or in flight.
  io_uring_sqe* next();
  // Hands over what next() gave out and waits until something has ended. Not ok: the kernel takes no more.
  Status enter(Deadline deadline);
  bool take(std::uint64_t& user_data, std::int32_t& result);  // the next that has ended

  Status register_files(std::span<const int> files);
  Status register_sparse_buffers(unsigned count);  // places for buffers, to be filled later
  Status register_buffer(unsigned index, void* base, std::size_t bytes);

 private:
  struct Mapping {
    Mapping() = default;
    Mapping(const Mapping&) = delete;
    ~Mapping();
    void* base = nullptr;
    std::size_t bytes = 0;
  };

  Uring() = default;
  Status setup(unsigned entries);
  Status map(Mapping& mapping, std::size_t bytes, std::int64_t offset);
  Status probe();
  Status control(unsigned what, const void* argument, unsigned count, const char* name);

  Mapping rings_, requests_;
  UniqueFd fd_;
  unsigned *sq_tail_ = nullptr, *cq_head_ = nullptr, *cq_tail_ = nullptr;
  unsigned *sq_head_ = nullptr, sq_mask_ = 0, cq_mask_ = 0;
  io_uring_cqe* ended_ = nullptr;
  unsigned tail_ = 0;  // of what next() gave out
};

}  // namespace kvo
