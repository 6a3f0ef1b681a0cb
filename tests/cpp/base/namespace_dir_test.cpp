#include "base/namespace_dir.h"

#include <gtest/gtest.h>
#include <sys/stat.h>
#include <sys/wait.h>

#include <atomic>
#include <filesystem>
#include <fstream>
#include <thread>

namespace kvo {
namespace {

namespace fs = std::filesystem;

constexpr std::int64_t kSlabBytes = 1 << 20;

struct NamespaceDirTest : testing::Test {
  NamespaceDirTest() {
    std::string name = (fs::temp_directory_path() / "namespace-XXXXXX").string();
    if (mkdtemp(name.data()) != nullptr) root = name;
  }
  ~NamespaceDirTest() override { fs::remove_all(root); }

  static NamespaceDir::Deadline soon(int seconds = 60) {
    return std::chrono::steady_clock::now() + std::chrono::seconds(seconds);
  }
  Result<NamespaceDir> open(const std::string& fingerprint, int dp = 0, const std::string& leaf = "ledger") {
    return NamespaceDir::open(root, fingerprint, dp, leaf, soon(0));
  }
  // A namespace as an earlier run left it; `age` orders them.
  void leave(const std::string& fingerprint, int age_seconds, int dp = 0) {
    auto dir = open(fingerprint, dp, "rank0");
    ASSERT_TRUE(dir.ok()) << dir.status().message();
    std::ofstream(dir->path() + "/slab") << std::string(kSlabBytes, 'x');
    fs::last_write_time(fs::path(dir->path()).parent_path() / "lock",
                        fs::file_time_type::clock::now() - std::chrono::seconds(age_seconds));
  }
  bool exists(const std::string& path) const { return fs::exists(fs::path(root) / path); }

  std::string root;
};

TEST_F(NamespaceDirTest, IsPrivateWhateverUmaskAndWhatWasThere) {
  fs::create_directories(fs::path(root) / "fingerprint" / "dp0");
  chmod((root + "/fingerprint").c_str(), 0777);
  const mode_t before = umask(0);
  auto dir = open("fingerprint");
  umask(before);
  ASSERT_TRUE(dir.ok()) << dir.status().message();
  EXPECT_EQ(dir->path(), root + "/fingerprint/dp0/ledger");
  struct stat status;
  for (const char* path : {"/fingerprint", "/fingerprint/dp0", "/fingerprint/dp0/ledger"}) {
    ASSERT_EQ(stat((root + path).c_str(), &status), 0);
    EXPECT_EQ(status.st_mode & 0777, 0700u) << path;
  }
  for (const char* path : {"/fingerprint/dp0/lock", "/fingerprint/dp0/ledger/lock"}) {
    ASSERT_EQ(stat((root + path).c_str(), &status), 0);
    EXPECT_EQ(status.st_mode & 0777, 0600u) << path;
  }
}

TEST_F(NamespaceDirTest, NamesThatLeadElsewhereAreRefused) {
  for (const char* name : {"../../etc", "short", "fingerprint/x", "fingerprint.", ""}) {
    EXPECT_EQ(open(name).status().code(), Code::invalid) << name;
  }
  EXPECT_EQ(open("fingerprint", -1).status().code(), Code::invalid);
  EXPECT_EQ(open("fingerprint", 0, "lock").status().code(), Code::invalid);
  EXPECT_EQ(open("fingerprint", 0, "..").status().code(), Code::invalid);
  EXPECT_TRUE(fs::is_empty(root));
}

TEST_F(NamespaceDirTest, LinksAreNotFollowed) {
  fs::create_directory(root + "/elsewhere");
  fs::create_directory_symlink(root + "/elsewhere", root + "/fingerprint");
  EXPECT_FALSE(open("fingerprint").ok());
  fs::create_directories(root + "/fingerprin2/dp0");
  fs::create_symlink(root + "/elsewhere/file", root + "/fingerprin2/dp0/lock");
  EXPECT_FALSE(open("fingerprin2").ok());
  EXPECT_TRUE(fs::is_empty(root + "/elsewhere"));
}

TEST_F(NamespaceDirTest, OneOwnerALeafAndTheRefusalNamesItsProcess) {
  const auto first = open("fingerprint");
  ASSERT_TRUE(first.ok());
  const auto second = open("fingerprint");
  EXPECT_EQ(second.status().code(), Code::invalid);
  EXPECT_NE(second.status().message().find("process " + std::to_string(getpid())), std::string::npos)
      << second.status().message();
  EXPECT_TRUE(open("fingerprint", 0, "rank0").ok());
  EXPECT_TRUE(open("fingerprint", 1).ok());
  EXPECT_TRUE(open("other-fingerprint").ok());
}

TEST_F(NamespaceDirTest, TheLockEndsWithItsProcess) {
  int ready[2];
  ASSERT_EQ(pipe(ready), 0);
  const pid_t child = fork();
  if (child == 0) {
    const auto dir = open("fingerprint");
    const char ok = dir.ok() ? 'y' : 'n';
    if (::write(ready[1], &ok, 1) != 1) _exit(1);
    pause();
    _exit(0);
  }
  char ok = 0;
  ASSERT_EQ(::read(ready[0], &ok, 1), 1);
  EXPECT_EQ(ok, 'y');
  const auto refused = open("fingerprint");
  EXPECT_NE(refused.status().message().find("process " + std::to_string(child)), std::string::npos);
  kill(child, SIGKILL);
  waitpid(child, nullptr, 0);
  EXPECT_TRUE(open("fingerprint").ok());
  close(ready[0]);
  close(ready[1]);
}

TEST_F(NamespaceDirTest, OthersGoTheLongestNotOpenedFirstAndOnlyAsManyAsMust) {
  leave("fingerprint-a", 100);
  leave("fingerprint-b", 300);
  leave("fingerprint-c", 200);
  leave("own-fingerprint", 900, 1);  // another dp rank's, of the same content
  auto own = open("own-fingerprint");
  ASSERT_TRUE(own.ok());
  auto room = own->make_room(0, 100 * kSlabBytes, soon());
  ASSERT_TRUE(room.ok()) << room.status().message();
  EXPECT_TRUE(room->removed.empty());
  EXPECT_GE(room->foreign_bytes, 4 * kSlabBytes);
  EXPECT_LT(room->foreign_bytes, 5 * kSlabBytes);

  room = own->make_room(2 * kSlabBytes, 4 * kSlabBytes + kSlabBytes / 2, soon());
  ASSERT_TRUE(room.ok());
  EXPECT_EQ(room->removed, (std::vector<std::string>{root + "/fingerprint-b/dp0", root + "/fingerprint-c/dp0"}));
  EXPECT_FALSE(exists("fingerprint-b"));
  EXPECT_TRUE(exists("fingerprint-a/dp0/rank0/slab"));

  room = own->make_room(0, 0, soon());
  ASSERT_TRUE(room.ok());
  EXPECT_EQ(room->removed.back(), root + "/own-fingerprint/dp1");
  EXPECT_EQ(room->foreign_bytes, 0);
  EXPECT_TRUE(exists("own-fingerprint/dp0/ledger/lock"));
}

TEST_F(NamespaceDirTest, WhatIsInUseStaysAndCounts) {
  leave("fingerprint-a", 100);
  auto used = open("fingerprint-a", 0, "rank7");
  ASSERT_TRUE(used.ok());
  auto own = open("own-fingerprint");
  ASSERT_TRUE(own.ok());
  auto room = own->make_room(0, kSlabBytes / 2, soon());
  ASSERT_TRUE(room.ok());
  EXPECT_TRUE(room->removed.empty());
  EXPECT_EQ(room->in_use, (std::vector<std::string>{root + "/fingerprint-a/dp0"}));
  EXPECT_GE(room->foreign_bytes, kSlabBytes);
  used = open("fingerprint-c");
  room = own->make_room(0, kSlabBytes / 2, soon());
  ASSERT_TRUE(room.ok());
  EXPECT_FALSE(exists("fingerprint-a"));
}

TEST_F(NamespaceDirTest, WhatIsNotOursIsNeverTouched) {
  fs::create_directories(root + "/fingerprint/dp0");
  std::ofstream(root + "/fingerprint/dp0/thesis.tex") << "years of work";
  fs::create_directories(root + "/photos/dp1");
  std::ofstream(root + "/photos/dp1/lock") << "some other program's lock";
  std::ofstream(root + "/plain-file") << "x";
  leave("fingerprint-a", 100);
  fs::create_directory_symlink(root + "/fingerprint-a", root + "/a-link");
  auto own = open("own-fingerprint");
  ASSERT_TRUE(own.ok());
  auto room = own->make_room(0, 0, soon());
  ASSERT_TRUE(room.ok());
  EXPECT_EQ(room->removed, (std::vector<std::string>{root + "/fingerprint-a/dp0"}));
  EXPECT_TRUE(exists("fingerprint/dp0/thesis.tex"));
  EXPECT_TRUE(exists("photos/dp1/lock"));
  EXPECT_TRUE(exists("plain-file"));
}

TEST_F(NamespaceDirTest, ANamespaceBehindALinkIsNotRemoved) {
  leave("fingerprint-a", 100);
  fs::create_directories(root + "/elsewhere");
  fs::rename(root + "/fingerprint-a", root + "/elsewhere/a");
  fs::create_directories(root + "/linked");
  fs::create_directory_symlink(root + "/elsewhere/a/dp0", root + "/linked/dp0");
  auto own = open("own-fingerprint");
  ASSERT_TRUE(own.ok());
  auto room = own->make_room(0, 0, soon());
  ASSERT_TRUE(room.ok());
  EXPECT_EQ(room->removed, std::vector<std::string>());
  EXPECT_TRUE(exists("elsewhere/a/dp0/rank0/slab"));
}

// Opening and removing the same namespace all the time: whoever has opened it has a directory that is there.
TEST_F(NamespaceDirTest, ANamespaceThatWasOpenedIsNotRemovedUnderItsOwner) {
  auto own = open("own-fingerprint");
  ASSERT_TRUE(own.ok());
  std::atomic<bool> stop = false;
  std::atomic<int> removed = 0;
  std::thread remover([&] {
    while (!stop) {
      auto room = own->make_room(1, 0, soon());
      ASSERT_TRUE(room.ok()) << room.status().message();
      removed += static_cast<int>(room->removed.size());
    }
  });
  for (int i = 0; i < 200; ++i) {
    auto dir = NamespaceDir::open(root, "fingerprint-a", 0, "rank0", soon());
    ASSERT_TRUE(dir.ok()) << dir.status().message();
    std::ofstream(dir->path() + "/slab") << "mine";
    std::this_thread::yield();
    std::ifstream slab(dir->path() + "/slab");
    std::string content;
    EXPECT_TRUE(std::getline(slab, content)) << i;
  }
  stop = true;
  remover.join();
  EXPECT_GT(removed, 0);
}

}  // namespace
}  // namespace kvo
