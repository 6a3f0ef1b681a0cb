#include "memory/arena.h"

#include <sys/mman.h>

#include <algorithm>
#include <cerrno>

#include "memory/filler.h"
#include "memory/limits.h"
#include "memory/numa.h"

namespace kvo {
namespace {

constexpr std::int64_t kHugePageBytes = 2 * MiB;

std::string size_text(std::int64_t bytes) { return human_bytes(bytes) + " (" + std::to_string(bytes) + " bytes)"; }

Status check_options(const std::shared_ptr<Device>& device, const ArenaOptions& options) {
  if (!device) return Status(Code::invalid, "the host arena needs a device, none given");
  if (options.bytes <= 0) {
    return Status(Code::invalid, "host: " + std::to_string(options.bytes) + " bytes given, at least 1 is needed");
  }
  if (options.threads <= 0) {
    return Status(Code::invalid, "threads: " + std::to_string(options.threads) + " given, at least 1 is needed");
  }
  return {};
}

std::string advise_huge_pages(const MappedRegion& region) {
  const auto mode = read_text("/sys/kernel/mm/transparent_hugepage/enabled").value_or("");
  if (mode.find("[never]") != std::string::npos) return "refused: transparent_hugepage/enabled is never";
  if (madvise(region.base(), region.bytes(), MADV_HUGEPAGE) != 0) return "refused: " + errno_text(errno);
  return "advised";
}

}  // namespace

Result<std::unique_ptr<Arena>> Arena::create(std::shared_ptr<Device> device, const ArenaOptions& options) {
  KVO_TRY(check_options(device, options));
  auto warning = check_limits(options.bytes, {options.cgroup_root, options.proc_root}, options.needs_memlock);
  if (!warning.ok()) return warning.status();
  // Huge pages begin at their own multiples; a last part smaller than one gets small pages, so none is rounded up.
  auto region = MappedRegion::reserve(options.bytes, kHugePageBytes);
  if (!region.ok()) {
    return Status(region.status().code(),
                  "host: asked for " + size_text(options.bytes) + ", " + region.status().message() + ": lower `host`");
  }
  std::unique_ptr<Arena> arena(new Arena(std::move(device), options, std::move(*region)));
  arena->warn(*warning);
  arena->advise();
  KVO_TRY(arena->filler_->start());
  arena->filler_->wait(options.background ? std::min(options.bytes, kFirstReadyBytes) : options.bytes);
  const Filler::Progress progress = arena->filler_->progress();
  if (progress.ready_bytes == 0) return arena->nothing_ready(progress.failure);
  return arena;
}

Arena::Arena(std::shared_ptr<Device> device, const ArenaOptions& options, MappedRegion region)
    : device_(std::move(device)), options_(options), region_(std::move(region)) {
  facts_.bytes = options_.bytes;
  facts_.pinned = device_->is_cuda();
}

Arena::~Arena() { close(); }

void Arena::advise() {
  // A child of fork would make every write here copy a page, and its exit must not cost the time of the whole pool.
  if (madvise(region_.base(), region_.bytes(), MADV_DONTFORK) != 0) warn("MADV_DONTFORK: " + errno_text(errno));
  facts_.huge_pages = options_.huge_pages ? advise_huge_pages(region_) : "off";
  PrefaultOptions prefault;
  prefault.threads = std::min(options_.threads, usable_cores({options_.cgroup_root, options_.proc_root}));
  prefault.huge_pages = facts_.huge_pages == "advised";
  prefault.huge_page_stall_seconds = options_.huge_page_stall_seconds;
  if (const int node = device_->numa_node(); node >= 0) {
    const Status preferred = prefer_node(region_.base(), region_.bytes(), node);
    if (preferred.ok()) facts_.numa_node = node;
    prefault.cores = cores_of_node(node);
    if (!preferred.ok()) {
      warn(preferred.message() + (prefault.cores ? "; memory is touched first from the node's cores instead"
                                                 : "; memory may lie far from the device"));
    }
  }
  filler_ = std::make_unique<Filler>(*device_, region_, prefault, options_.background && options_.held);
}

void Arena::warn(const std::string& warning) {
  if (!warning.empty()) facts_.warning += (facts_.warning.empty() ? "" : "; ") + warning;
}

Status Arena::nothing_ready(const Status& cause) const {
  return Status(cause.code(), "host: asked for " + size_text(options_.bytes) + ", none of it could be made ready: " +
                                  cause.message() + ": lower `host` or raise the limit that it met");
}

void Arena::fill_rest() {
  if (!owner_.forked() && !closed_) filler_->go_on();
}

std::int64_t Arena::ready_bytes() const { return filler_ ? std::min(filler_->ready_bytes(), options_.bytes) : 0; }

Status Arena::wait_ready(std::int64_t bytes, Deadline deadline) {
  KVO_TRY(owner_.check("this host arena"));
  if (bytes < 0 || bytes > options_.bytes) {
    return Status(Code::invalid, "wait_ready: " + std::to_string(bytes) + " bytes given, the arena has " +
                                     std::to_string(options_.bytes));
  }
  const bool settled = filler_->wait(bytes, deadline);
  if (closed_) return Status(Code::closed, "the host arena was closed");
  const Filler::Progress progress = filler_->progress();
  if (progress.ready_bytes >= bytes) return {};
  if (settled) return progress.failure;
  return Status(Code::timeout, "the host arena has " + size_text(progress.ready_bytes) + " ready of " +
                                   size_text(bytes) + " waited for");
}

ArenaReport Arena::report() const {
  if (owner_.forked()) {
    ArenaReport report;
    report.warning = owner_.check("this host arena").message();
    return report;
  }
  std::lock_guard lock(closing_);
  ArenaReport report = facts_;
  const Filler::Progress progress = filler_->progress();
  report.ready_bytes = ready_bytes();
  report.seconds = progress.seconds;
  report.first_ready_seconds = progress.first_ready_seconds;
  if (progress.gave_up_huge_pages) report.huge_pages = "given up: the kernel was slow to make them";
  if (!progress.failure.ok() && !closed_) {
    report.failure = "host: capacity stays at " + size_text(progress.ready_bytes) + " of " + size_text(options_.bytes) +
                     ": " + progress.failure.message();
    report.warning += (report.warning.empty() ? "" : "; ") + report.failure;
  }
  return report;
}

void Arena::close() { end(/*keep_mapping=*/false); }

void Arena::leak() { end(/*keep_mapping=*/true); }

void Arena::end(bool keep_mapping) {
  if (owner_.forked()) {
    // Nothing is mapped here (MADV_DONTFORK) and the addresses may by now be someone else's.
    region_.leak();
    static_cast<void>(filler_.release());
    return;
  }
  std::lock_guard lock(closing_);
  if (closed_.exchange(true)) return;
  filler_->stop();
  if (keep_mapping) return region_.leak();
  const Status unpinned = filler_->unpin_all();
  if (unpinned.ok()) return region_.unmap();
  // The driver may still reach these pages: they stay until the process ends.
  region_.leak();
  warn("host memory kept, unpinning failed: " + unpinned.message());
}

}  // namespace kvo
