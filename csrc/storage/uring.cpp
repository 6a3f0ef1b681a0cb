#include "storage/uring.h"

#if __has_include(<linux/io_uring.h>)
#include <linux/io_uring.h>
#endif
#include <sys/mman.h>
#include <sys/syscall.h>
#include <sys/uio.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <csignal>
#include <cstring>
#include <string>

#include "base/fault.h"
#include "base/mapped_region.h"

// Headers that know of these have all that is used here.
#if defined(IORING_SETUP_DEFER_TASKRUN) && defined(__NR_io_uring_setup)

namespace kvo {
namespace {

constexpr unsigned kNeededFeatures = IORING_FEAT_SINGLE_MMAP | IORING_FEAT_NODROP | IORING_FEAT_EXT_ARG;

Status refused(const char* call, int error) {
  return Status(Code::unsupported, std::string(call) + ": " + errno_text(error));
}

template <class T>
T* at(void* base, unsigned offset) {
  return reinterpret_cast<T*>(static_cast<std::byte*>(base) + offset);
}

__kernel_timespec left_until(Uring::Deadline deadline) {
  constexpr std::chrono::seconds kMost{3600};
  const auto now = std::chrono::steady_clock::now();
  if (deadline <= now) return {0, 0};
  const auto left = deadline > now + kMost ? std::chrono::nanoseconds(kMost) : deadline - now;
  return {left.count() / 1'000'000'000, left.count() % 1'000'000'000};
}

}  // namespace

Uring::Mapping::~Mapping() {
  if (base) munmap(base, bytes);
}

Result<std::unique_ptr<Uring>> Uring::open(unsigned entries) {
  std::unique_ptr<Uring> ring(new Uring());
  KVO_TRY(ring->setup(entries));
  KVO_TRY(ring->probe());
  return ring;
}

Uring::~Uring() = default;

Status Uring::setup(unsigned entries) {
  io_uring_params params{};
  // What ends is told in our own calls alone, so no interrupt costs a core that computes. Linux 6.1 has it.
  params.flags = IORING_SETUP_SINGLE_ISSUER | IORING_SETUP_DEFER_TASKRUN;
  const bool too_old = fault::fires("uring_flags");
  long fd = too_old ? (errno = EINVAL, -1) : syscall(__NR_io_uring_setup, entries, &params);
  if (fd < 0 && errno == EINVAL) {
    params = {};
    fd = syscall(__NR_io_uring_setup, entries, &params);
  }
  if (fd < 0) return refused("io_uring_setup", errno);
  fd_ = UniqueFd(static_cast<int>(fd));
  if ((params.features & kNeededFeatures) != kNeededFeatures) return refused("io_uring of this kernel", ENOSYS);
  const std::size_t sq_bytes = params.sq_off.array + params.sq_entries * sizeof(unsigned);
  const std::size_t cq_bytes = params.cq_off.cqes + params.cq_entries * sizeof(io_uring_cqe);
  KVO_TRY(map(rings_, std::max(sq_bytes, cq_bytes), IORING_OFF_SQ_RING));
  KVO_TRY(map(requests_, params.sq_entries * sizeof(io_uring_sqe), IORING_OFF_SQES));
  sq_head_ = at<unsigned>(rings_.base, params.sq_off.head);
  sq_tail_ = at<unsigned>(rings_.base, params.sq_off.tail);
  sq_mask_ = *at<unsigned>(rings_.base, params.sq_off.ring_mask);
  cq_head_ = at<unsigned>(rings_.base, params.cq_off.head);
  cq_tail_ = at<unsigned>(rings_.base, params.cq_off.tail);
  cq_mask_ = *at<unsigned>(rings_.base, params.cq_off.ring_mask);
  ended_ = at<io_uring_cqe>(rings_.base, params.cq_off.cqes);
  unsigned* order = at<unsigned>(rings_.base, params.sq_off.array);
  for (unsigned i = 0; i < params.sq_entries; ++i) order[i] = i;
  return {};
}

Status Uring::map(Mapping& mapping, std::size_t bytes, std::int64_t offset) {
  void* base = mmap(nullptr, bytes, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_POPULATE, fd_.get(), offset);
  if (base == MAP_FAILED) return refused("mmap of io_uring", errno);
  mapping.base = base, mapping.bytes = bytes;
  return {};
}

// Some containers allow the setup and refuse what comes after it.
Status Uring::probe() {
  next()->opcode = IORING_OP_NOP;
  KVO_TRY(enter(std::chrono::steady_clock::now() + std::chrono::seconds(5)));
  std::uint64_t user_data;
  std::int32_t result;
  if (!take(user_data, result)) return refused("io_uring_enter", ETIME);
  return result < 0 ? refused("io_uring no-op", -result) : Status();
}

io_uring_sqe* Uring::next() {
  auto* request = static_cast<io_uring_sqe*>(requests_.base) + (tail_++ & sq_mask_);
  std::memset(request, 0, sizeof *request);
  return request;
}

Status Uring::enter(Deadline deadline) {
  __atomic_store_n(sq_tail_, tail_, __ATOMIC_RELEASE);
  while (true) {
    const unsigned unsent = tail_ - __atomic_load_n(sq_head_, __ATOMIC_ACQUIRE);
    const bool ended = __atomic_load_n(cq_tail_, __ATOMIC_ACQUIRE) != *cq_head_;
    __kernel_timespec left = left_until(deadline);
    io_uring_getevents_arg wait{};
    wait.sigmask_sz = _NSIG / 8, wait.ts = reinterpret_cast<std::uint64_t>(&left);
    const unsigned least = ended || (left.tv_sec == 0 && left.tv_nsec == 0) ? 0 : 1;
    const long sent = syscall(__NR_io_uring_enter, fd_.get(), unsent, least,
                              IORING_ENTER_GETEVENTS | IORING_ENTER_EXT_ARG, &wait, sizeof wait);
    // A timeout is told only when nothing was sent; EAGAIN, EBUSY: to be called again once something was taken.
    if (sent < 0 && errno != EINTR && errno != ETIME && errno != EAGAIN && errno != EBUSY) {
      return refused("io_uring_enter", errno);
    }
    const bool all_sent = tail_ == __atomic_load_n(sq_head_, __ATOMIC_ACQUIRE);
    if (__atomic_load_n(cq_tail_, __ATOMIC_ACQUIRE) != *cq_head_) return {};
    if (all_sent && std::chrono::steady_clock::now() >= deadline) return {};
    if (sent < 0 && !all_sent && errno != EINTR) usleep(100);
  }
}

bool Uring::take(std::uint64_t& user_data, std::int32_t& result) {
  const unsigned head = *cq_head_;
  if (head == __atomic_load_n(cq_tail_, __ATOMIC_ACQUIRE)) return false;
  const io_uring_cqe& ended = ended_[head & cq_mask_];
  user_data = ended.user_data, result = ended.res;
  __atomic_store_n(cq_head_, head + 1, __ATOMIC_RELEASE);
  return true;
}

Status Uring::control(unsigned what, const void* argument, unsigned count, const char* name) {
  if (syscall(__NR_io_uring_register, fd_.get(), what, argument, count) >= 0) return {};
  return refused(name, errno);
}

Status Uring::register_files(std::span<const int> files) {
  return control(IORING_REGISTER_FILES, files.data(), static_cast<unsigned>(files.size()), "registering files");
}

Status Uring::register_sparse_buffers(unsigned count) {
  io_uring_rsrc_register table{};
  table.nr = count, table.flags = IORING_RSRC_REGISTER_SPARSE;
  return control(IORING_REGISTER_BUFFERS2, &table, sizeof table, "registering buffers");
}

Status Uring::register_buffer(unsigned index, void* base, std::size_t bytes) {
  const iovec buffer{base, bytes};
  io_uring_rsrc_update2 update{};
  update.offset = index, update.data = reinterpret_cast<std::uint64_t>(&buffer), update.nr = 1;
  return control(IORING_REGISTER_BUFFERS_UPDATE, &update, sizeof update, "registering a buffer");
}

}  // namespace kvo

#else

namespace kvo {

static Status not_built() {
  return Status(Code::unsupported, "built without io_uring: its kernel headers are too old");
}

Uring::Mapping::~Mapping() = default;
Result<std::unique_ptr<Uring>> Uring::open(unsigned) { return not_built(); }
Uring::~Uring() = default;
io_uring_sqe* Uring::next() { return nullptr; }
Status Uring::enter(Deadline) { return not_built(); }
bool Uring::take(std::uint64_t&, std::int32_t&) { return false; }
Status Uring::register_files(std::span<const int>) { return not_built(); }
Status Uring::register_sparse_buffers(unsigned) { return not_built(); }
Status Uring::register_buffer(unsigned, void*, std::size_t) { return not_built(); }

}  // namespace kvo

#endif
