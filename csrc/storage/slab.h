// The files that hold a rank's records: one in each directory, made to its full length before anything is served, so
// that the space is ours or the opening fails. Direct I/O where it works, which is tried and not asked.
//
// Directories are private and locked by the caller (base/namespace_dir.h). Files are 0600; links are not followed.
#pragma once
#include <atomic>
#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "base/status.h"
#include "base/unique_fd.h"
#include "storage/slab_header.h"

namespace kvo {

struct SlabOptions {
  std::vector<std::string> directories;
  SlabPlan plan;
  std::int64_t cap_bytes = 0;
  std::string fingerprint;
  int rank = 0;
  bool network = false;  // file systems of other machines, too
};

struct SlabReport {
  bool direct = true, preallocated = true;
  std::string note;             // why not, and what else is to be said in the start line
  std::int64_t disk_bytes = 0;  // what the files take
};

class Slab {
 public:
  // invalid: not enough space (message: asked, available, option), a path that is none, a network file system.
  // unsupported: what the system refuses.
  static Result<std::unique_ptr<Slab>> open(SlabOptions options);
  Slab(const Slab&) = delete;

  const SlabPlan& plan() const { return options_.plan; }
  const SlabReport& report() const { return report_; }
  std::vector<int> files() const;
  std::vector<std::string> paths() const;

  // Which cache the records belong to; 0: the slab is new, or is cut in another way than it was.
  std::uint64_t identity() const { return identity_.load(std::memory_order_relaxed); }
  Status set_identity(std::uint64_t identity);  // durable when it returns
  const DiskTuning& tuning() const { return tuning_; }
  Status set_tuning(const DiskTuning& tuning);  // before other threads use the slab

  // Any thread. Before a write is told to anyone; then sync() puts it on the medium, and its caller knows.
  void written(int file) { files_[file]->unsynced.store(true, std::memory_order_relaxed); }
  Status sync();

 private:
  struct File {
    std::string directory;
    UniqueFd fd;
    bool direct = false;
    std::int64_t bytes_before = 0, disk_bytes_before = 0;
    std::atomic<bool> unsynced{false};
  };

  explicit Slab(SlabOptions options) : options_(std::move(options)) {}
  Status open_file(const std::string& directory);
  Status check_space() const;
  Status allocate(File& file);
  void read_headers();
  Status write_headers(std::uint64_t identity);
  Status measure();

  const SlabOptions options_;
  SlabReport report_;
  std::vector<std::unique_ptr<File>> files_;
  std::atomic<std::uint64_t> identity_{0};
  DiskTuning tuning_;
};

}  // namespace kvo
