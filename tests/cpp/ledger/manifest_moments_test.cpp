// What happens in between: appends and an end at chosen moments of a compaction.
#include <functional>
#include <utility>

#include "ledger/manifest_fixture.h"

namespace kvo {
namespace {

// Real files; `moment` hears of every operation on one before it is done.
class WatchedFiles final : public FileSystem {
 public:
  std::function<void(const std::string& operation, const std::string& path)> moment = [](auto&&...) {};

  Result<std::unique_ptr<File>> open(const std::string& path, OpenMode mode) override {
    auto file = real_files().open(path, mode);
    if (!file.ok() || !*file) return file;
    return std::unique_ptr<File>(new Watched(*this, std::move(*file), path));
  }
  Status rename(const std::string& from, const std::string& to) override { return real_files().rename(from, to); }
  Status remove(const std::string& path) override { return real_files().remove(path); }
  Status sync_directory(const std::string& path) override { return real_files().sync_directory(path); }

 private:
  class Watched final : public File {
   public:
    Watched(WatchedFiles& files, std::unique_ptr<File> file, std::string path)
        : files_(files), file_(std::move(file)), path_(std::move(path)) {}
    Result<std::int64_t> size() override { return file_->size(); }
    Result<std::int64_t> read(std::int64_t offset, void* into, std::int64_t bytes) override {
      files_.moment("read", path_);
      return file_->read(offset, into, bytes);
    }
    Status write(std::int64_t offset, const void* from, std::int64_t bytes) override {
      return file_->write(offset, from, bytes);
    }
    Status sync() override {
      files_.moment("sync", path_);
      return file_->sync();
    }

   private:
    WatchedFiles& files_;
    std::unique_ptr<File> file_;
    std::string path_;
  };
};

struct ManifestMoments : ManifestTest {
  ManifestMoments() {
    options.files = &files;
    options.compact_bytes = 1024;
    auto opened = ManifestLog::open(options);
    EXPECT_TRUE(opened.ok());
    log = std::move(*opened);
    for (int i = 1; i <= 30; ++i) commit(i, 1);
  }
  void commit(std::int64_t key, std::int64_t slot) {
    const std::string name = key_of(key);
    const ManifestCommit chunk{name, slot, key};
    log->commit(1, 0, {&chunk, 1});
  }
  std::string new_path() const { return path() + ".new"; }

  WatchedFiles files;
  std::unique_ptr<ManifestLog> log;
};

TEST_F(ManifestMoments, AppendsAtEveryStageOfACompactionAreKept) {
  bool copied = false, tail_read = false;
  files.moment = [&](const std::string& operation, const std::string& path) {
    if (operation == "sync" && path == new_path() && !copied) {  // the live commits are copied
      copied = true;
      commit(100, 2);
      commit(101, 3);
    } else if (operation == "read" && copied && !tail_read) {  // the tail is being copied, up to a fixed end
      tail_read = true;
      log->free(0, std::vector<std::int64_t>{3});
      commit(102, 4);
    }
  };
  EXPECT_TRUE(log->maintain().ok());
  EXPECT_TRUE(tail_read);
  EXPECT_EQ(log->stats().compactions, 1);
  files.moment = [](auto&&...) {};
  EXPECT_EQ(reopen(), (Found{{key_of(30), {1, 30}}, {key_of(100), {2, 100}}, {key_of(102), {4, 102}}}));
}

TEST_F(ManifestMoments, ALogThatWasClosedReplacesNoFile) {
  for (const bool resets : {false, true}) {
    files.moment = [&](const std::string& operation, const std::string& path) {
      if (operation != "sync" || path != new_path()) return;
      log->close();
      write("the next owner's");
    };
    EXPECT_FALSE((resets ? log->reset() : log->maintain()).ok());
    files.moment = [](auto&&...) {};
    EXPECT_EQ(content(), "the next owner's");
    log = std::move(*ManifestLog::open(options));
  }
}

TEST_F(ManifestMoments, WhatAKillLeftUnsyncedIsMadeDurableByTheNextOwner) {
  options.boot = 1;
  log = std::move(*ManifestLog::open(options));
  commit(1, 1);
  log = std::move(*ManifestLog::open(options));
  EXPECT_TRUE(log->maintain().ok());
  options.boot = 2;
  EXPECT_EQ(reopen(), (Found{{key_of(1), {1, 1}}}));
  EXPECT_EQ(opening.unsynced_chunks, 0);
}

}  // namespace
}  // namespace kvo
