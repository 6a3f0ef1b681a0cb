// A disk in memory that loses power: what was not synced is there or not, by sectors, in any order.
#pragma once
#include <algorithm>
#include <cerrno>
#include <cstring>
#include <map>
#include <memory>
#include <mutex>
#include <random>
#include <string>
#include <utility>
#include <vector>

#include "base/file.h"

namespace kvo {

class LossyFiles final : public FileSystem {
 public:
  using Bytes = std::vector<char>;

  explicit LossyFiles(std::uint64_t seed) : random_(seed) {}

  Result<std::unique_ptr<File>> open(const std::string& path, OpenMode mode) override {
    std::lock_guard lock(mutex_);
    if (!powered()) return lost(path);
    auto found = names_.find(path);
    if (found == names_.end() && mode == OpenMode::existing) return std::unique_ptr<File>();
    if (found == names_.end() || mode == OpenMode::empty) {
      // Emptying is a new file here: harsher than a disk, which may keep either content.
      found = names_.insert_or_assign(path, std::make_shared<Inode>()).first;
      renames_.push_back({path, found->second, ""});
    }
    return std::unique_ptr<File>(new Handle(*this, found->second, path));
  }

  Status rename(const std::string& from, const std::string& to) override {
    std::lock_guard lock(mutex_);
    if (!powered()) return lost(from).status();
    names_[to] = names_.at(from);
    names_.erase(from);
    renames_.push_back({to, names_.at(to), from});
    return {};
  }

  Status remove(const std::string& path) override {
    std::lock_guard lock(mutex_);
    if (!powered()) return lost(path).status();
    if (names_.erase(path) > 0) renames_.push_back({"", nullptr, path});
    return {};
  }

  Status sync_directory(const std::string& path) override {
    std::lock_guard lock(mutex_);
    if (!powered()) return lost(path).status();
    durable_names_ = names_;
    renames_.clear();
    return {};
  }

  // The power goes with the `operations`-th operation from now on: it and all later ones fail and do nothing.
  void cut_after(std::int64_t operations) { left_ = operations; }
  bool cut() const { return left_ <= 0; }

  // The power is back. Of what was not on the medium any part may be: each file keeps a random share of its sectors.
  void restart() {
    std::lock_guard lock(mutex_);
    for (const Rename& rename : renames_) {
      if (random_() % 3 == 0) break;  // names are journaled: in order
      if (!rename.to.empty()) durable_names_[rename.to] = rename.inode;
      if (!rename.from.empty()) durable_names_.erase(rename.from);
    }
    renames_.clear();
    names_ = durable_names_;
    for (auto& [name, inode] : names_) inode = std::make_shared<Inode>(survivor(*inode));
    durable_names_ = names_;
    left_ = INT64_MAX;
  }

 private:
  static constexpr std::size_t kSectorBytes = 512;
  struct Write {
    std::size_t offset;
    Bytes bytes;
  };
  struct Inode {
    Bytes current = {}, durable = {};
    std::vector<Write> pending = {};
  };
  struct Rename {
    std::string to;
    std::shared_ptr<Inode> inode;
    std::string from;
  };

  class Handle final : public File {
   public:
    Handle(LossyFiles& files, std::shared_ptr<Inode> inode, std::string path)
        : files_(files), inode_(std::move(inode)), path_(std::move(path)) {}

    Result<std::int64_t> size() override {
      std::lock_guard lock(files_.mutex_);
      return static_cast<std::int64_t>(inode_->current.size());
    }

    Result<std::int64_t> read(std::int64_t offset, void* into, std::int64_t bytes) override {
      std::lock_guard lock(files_.mutex_);
      const auto size = static_cast<std::int64_t>(inode_->current.size());
      const std::int64_t count = std::clamp<std::int64_t>(size - offset, 0, bytes);
      if (count > 0) std::memcpy(into, inode_->current.data() + offset, count);
      return count;
    }

    Status write(std::int64_t offset, const void* from, std::int64_t bytes) override {
      std::lock_guard lock(files_.mutex_);
      if (!files_.powered()) return lost(path_).status();
      const char* data = static_cast<const char*>(from);
      inode_->pending.push_back({static_cast<std::size_t>(offset), Bytes(data, data + bytes)});
      put(inode_->current, offset, data, bytes);
      return {};
    }

    Status sync() override {
      std::lock_guard lock(files_.mutex_);
      if (!files_.powered()) return lost(path_).status();
      inode_->durable = inode_->current;
      inode_->pending.clear();
      return {};
    }

   private:
    LossyFiles& files_;
    const std::shared_ptr<Inode> inode_;
    const std::string path_;
  };

  static void put(Bytes& into, std::size_t offset, const char* from, std::size_t bytes) {
    if (into.size() < offset + bytes) into.resize(offset + bytes);
    if (bytes > 0) std::memcpy(into.data() + offset, from, bytes);
  }

  static Result<std::unique_ptr<File>> lost(const std::string& path) { return file_error("reach", path, EIO); }

  bool powered() {
    if (left_ > 0) --left_;
    return left_ > 0;
  }

  Inode survivor(const Inode& inode) {
    Inode left{.current = inode.durable};
    const std::uint64_t share = random_() % 5;  // of four quarters
    for (const Write& write : inode.pending) {
      for (std::size_t at = 0; at < write.bytes.size();) {
        const std::size_t offset = write.offset + at;
        const std::size_t count = std::min(write.bytes.size() - at, kSectorBytes - offset % kSectorBytes);
        if (random_() % 4 < share) put(left.current, offset, write.bytes.data() + at, count);
        at += count;
      }
    }
    left.durable = left.current;
    return left;
  }

  std::mutex mutex_;
  std::mt19937_64 random_;
  std::int64_t left_ = INT64_MAX;  // operations until the cut
  std::map<std::string, std::shared_ptr<Inode>> names_, durable_names_;
  std::vector<Rename> renames_;  // and creations and removals, since the last sync of a directory
};

}  // namespace kvo
