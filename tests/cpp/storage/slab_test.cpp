#include "storage/slab.h"

#include <sys/resource.h>
#include <sys/stat.h>

#include <algorithm>
#include <csignal>
#include <fstream>
#include <map>

#include "storage/direct_io.h"
#include "storage/slab_header.h"
#include "storage/storage_fixture.h"

namespace kvo {
namespace {

namespace fs = std::filesystem;

constexpr std::int64_t kSlot = 16 * KiB;

SlabPlan plan_of(std::int64_t bytes, int directories = 1, std::int64_t extent_bytes = 256 * KiB) {
  return {bytes, extent_bytes, {kSlot}, directories};
}

struct SlabTest : StorageTest {
  SlabOptions options_of(std::int64_t bytes, int directories = 1) {
    SlabOptions options;
    for (int i = 0; i < directories; ++i) options.directories.push_back(dir.make("rank" + std::to_string(i)));
    options.plan = plan_of(bytes, directories);
    options.cap_bytes = options.plan.disk_bytes();
    options.fingerprint = "fingerprint";
    return options;
  }
  std::unique_ptr<Slab> open(const SlabOptions& options) {
    auto slab = Slab::open(options);
    EXPECT_EQ(slab.status().message(), "");
    return slab.ok() ? std::move(*slab) : nullptr;
  }
  std::string refusal(const SlabOptions& options) { return Slab::open(options).status().message(); }
  std::int64_t disk_bytes(const std::string& path) {
    struct stat status;
    return stat(path.c_str(), &status) == 0 ? status.st_blocks * 512 : -1;
  }
  std::string path(int directory = 0) { return dir.path + "/rank" + std::to_string(directory) + "/slab"; }
};

TEST(SlabPlan, EverySlotOfEveryGroupHasAPlaceOfItsOwn) {
  for (const int directories : {1, 2, 3, 5}) {
    const SlabPlan plan{1000 * KiB + 20 * KiB, 200 * KiB, {4 * KiB, 12 * KiB, 28 * KiB}, directories};
    for (const std::int64_t slot : plan.slot_bytes) {
      std::map<std::pair<int, std::int64_t>, std::int64_t> taken;  // file, page -> the slot
      std::vector<std::int64_t> slots_in(directories);
      for (std::int64_t extent = 0; extent < plan.bytes; extent += plan.extent_bytes) {
        const std::int64_t bytes = std::min(plan.extent_bytes, plan.bytes - extent);
        for (std::int64_t offset = extent; offset + slot <= extent + bytes; offset += slot) {
          const SlabPlace place = plan.place_of(offset, slot);
          ++slots_in[place.file];
          EXPECT_GE(place.offset, kSlabHeaderBytes);
          EXPECT_LE(place.offset + slot, plan.file_bytes());
          for (std::int64_t page = 0; page < slot; page += 4096) {
            EXPECT_TRUE(taken.emplace(std::pair(place.file, place.offset + page), offset).second) << offset;
          }
        }
      }
      const auto [least, most] = std::minmax_element(slots_in.begin(), slots_in.end());
      EXPECT_LE(*most - *least, plan.bytes / plan.extent_bytes + 1);  // striped
    }
  }
}

TEST(SlabPlan, FitsTheCapAndUsesIt) {
  const auto extent_bytes_of = [](std::int64_t bytes) { return std::max<std::int64_t>(bytes / 16 / 56, 1) * 56; };
  for (const std::int64_t cap : {GiB, GiB + 12345, 10 * GiB, 10'000 * GiB}) {
    for (const int directories : {1, 3}) {
      const SlabPlan plan = fit_slab(cap, {4096 * 7, 4096 * 2}, directories, extent_bytes_of);
      EXPECT_LE(plan.disk_bytes(), cap);
      EXPECT_GT(plan.disk_bytes(), cap - cap / 100);
      EXPECT_EQ(plan.extent_bytes, extent_bytes_of(plan.bytes));
    }
  }
  EXPECT_EQ(fit_slab(60 * KiB, {4096}, 1, extent_bytes_of).bytes, 0);
}

TEST_F(SlabTest, TakesItsSpaceAtOnceAndNotMore) {
  umask(0);
  auto slab = open(options_of(10 * MiB, 2));
  umask(022);
  for (const int i : {0, 1}) {
    EXPECT_GE(disk_bytes(path(i)), 5 * MiB);
    struct stat status;
    ASSERT_EQ(stat(path(i).c_str(), &status), 0);
    EXPECT_EQ(status.st_mode & 0777, 0600);
    EXPECT_EQ(status.st_size, slab->plan().file_bytes());
    chmod(path(i).c_str(), 0666);  // somebody's backup
  }
  EXPECT_EQ(slab->report().disk_bytes, disk_bytes(path(0)) + disk_bytes(path(1)));
  EXPECT_LE(slab->report().disk_bytes, slab->plan().disk_bytes());
  EXPECT_TRUE(slab->report().preallocated);
  slab = open(options_of(10 * MiB, 2));
  EXPECT_EQ(fs::status(path(1)).permissions(), fs::perms::owner_read | fs::perms::owner_write);
  EXPECT_EQ(slab->paths(), (std::vector<std::string>{path(0), path(1)}));
}

TEST_F(SlabTest, KeepsItsIdentityUntilItIsAnotherSlab) {
  auto options = options_of(1 * MiB, 2);
  auto slab = open(options);
  EXPECT_EQ(slab->identity(), 0u);
  EXPECT_TRUE(slab->set_identity(77).ok());
  slab = open(options);
  EXPECT_EQ(slab->identity(), 77u);
  options.plan.bytes = MiB / 2;  // a lower cap
  slab = open(options);
  EXPECT_EQ(slab->identity(), 77u);
  EXPECT_EQ(static_cast<std::int64_t>(fs::file_size(path())), slab->plan().file_bytes());
  fs::remove(path(1));
  slab = open(options);
  EXPECT_EQ(slab->identity(), 0u);

  const auto is_another = [&](auto change) {
    EXPECT_TRUE(slab->set_identity(78).ok());
    auto changed = options;
    change(changed);
    slab = open(changed);
    EXPECT_EQ(slab->identity(), 0u);
    slab = open(options);  // and what it was before is gone, too
    EXPECT_EQ(slab->identity(), 0u);
  };
  is_another([](SlabOptions& other) { other.fingerprint = "fingerprinu"; });
  is_another([](SlabOptions& other) { other.rank = 1; });
  is_another([](SlabOptions& other) { other.plan.extent_bytes *= 2; });
  is_another([](SlabOptions& other) { std::swap(other.directories[0], other.directories[1]); });
  EXPECT_TRUE(slab->set_identity(79).ok());
  std::fstream(path(1), std::ios::in | std::ios::out | std::ios::binary).seekp(20).put('x');
  EXPECT_EQ(open(options)->identity(), 0u);
}

TEST_F(SlabTest, LinksAndOtherFilesAreNotTouched) {
  const auto options = options_of(MiB);
  const std::string target = dir.path + "/somebody's";
  std::ofstream(target) << "precious";
  fs::create_symlink(target, path());
  EXPECT_NE(refusal(options).find("Too many levels of symbolic links"), std::string::npos) << refusal(options);
  EXPECT_EQ(fs::file_size(target), 8u);
  fs::remove(path());
  ASSERT_EQ(mkfifo(path().c_str(), 0600), 0);
  EXPECT_NE(refusal(options).find("cannot open"), std::string::npos) << refusal(options);
  fs::remove(path());
  std::ofstream(dir.path + "/rank0/other") << "precious";
  open(options);
  EXPECT_EQ(fs::file_size(dir.path + "/rank0/other"), 8u);
  auto linked = options;
  fs::create_directory_symlink(dir.path + "/rank0", dir.path + "/link");
  linked.directories = {dir.path + "/link"};
  EXPECT_NE(refusal(linked).find("cannot open"), std::string::npos) << refusal(linked);
}

TEST_F(SlabTest, TooLittleSpaceIsSaidBeforeAnyIsTaken) {
  auto options = options_of(std::int64_t{1} << 50);
  options.plan.extent_bytes = GiB;
  const std::string why = refusal(options);
  EXPECT_NE(why.find("disk_size asks for 1.00 PiB"), std::string::npos) << why;
  EXPECT_NE(why.find("are available: lower disk_size"), std::string::npos) << why;
  EXPECT_EQ(disk_bytes(path()), 0);
}

TEST_F(SlabTest, SpaceThatCannotBeHadLeavesTheFileAsItWas) {
  auto options = options_of(MiB);
  open(options)->set_identity(5).ok();
  const auto before = disk_bytes(path());
  options.plan.bytes = 2 * MiB, options.cap_bytes = options.plan.disk_bytes();
  fault::arm("slab_enospc", 0, 1);
  const std::string why = refusal(options);
  EXPECT_NE(why.find("No space left on device"), std::string::npos) << why;
  EXPECT_EQ(disk_bytes(path()), before);
  options.plan.bytes = MiB;
  EXPECT_EQ(open(options)->identity(), 5u);
}

TEST_F(SlabTest, MoreThanTheCapIsRefused) {
  auto options = options_of(MiB);
  options.cap_bytes = options.plan.file_bytes() - 1;
  const std::string why = refusal(options);
  EXPECT_NE(why.find("on disk, disk_size allows"), std::string::npos) << why;
}

TEST_F(SlabTest, TheLimitOfFileSizesCounts) {
  const auto options = options_of(MiB);
  EXPECT_EQ(in_child([&] {
              const rlimit limit{256 * KiB, 256 * KiB};
              setrlimit(RLIMIT_FSIZE, &limit);
              signal(SIGXFSZ, SIG_IGN);
              const std::string why = refusal(options);
              return why.find("File too large") == std::string::npos ? 1 : 0;
            }),
            0);
}

TEST_F(SlabTest, WithoutFallocateItGrows) {
  fault::arm("slab_fallocate", 0, 1);
  auto slab = open(options_of(8 * MiB));
  EXPECT_FALSE(slab->report().preallocated);
  EXPECT_NE(slab->report().note.find("no fallocate"), std::string::npos) << slab->report().note;
  EXPECT_LT(disk_bytes(path()), MiB);
  EXPECT_EQ(static_cast<std::int64_t>(fs::file_size(path())), slab->plan().file_bytes());
}

TEST_F(SlabTest, WithoutDirectIoItIsBufferedAndSaysSo) {
  fault::arm("slab_direct", 0, 1);
  auto slab = open(options_of(MiB));
  EXPECT_FALSE(slab->report().direct);
  EXPECT_NE(slab->report().note.find("buffered, direct I/O does not work: open refuses it: Invalid argument"),
            std::string::npos)
      << slab->report().note;
  EXPECT_EQ(fcntl(slab->files()[0], F_GETFL) & O_DIRECT, 0);
  slab = open(options_of(MiB));
  EXPECT_EQ((fcntl(slab->files()[0], F_GETFL) & O_DIRECT) != 0, slab->report().direct);
  EXPECT_FALSE(fs::exists(dir.path + "/rank0/probe"));
}

TEST_F(SlabTest, NetworkFileSystemsOnlyWhenAsked) {
  auto options = options_of(MiB);
  fault::arm("slab_network", 0, 2);
  EXPECT_NE(refusal(options).find("network file system"), std::string::npos);
  options.network = true;
  open(options);
  for (const long type : {0x6969l, 0xff534d42l, static_cast<long>(static_cast<int>(0xff534d42)), 0x65735546l}) {
    EXPECT_TRUE(is_network_file_system(type)) << type;
  }
  for (const long type : {0xef53l, 0x58465342l, 0x01021994l}) EXPECT_FALSE(is_network_file_system(type)) << type;
}

TEST_F(SlabTest, SyncsWhatWasWrittenAndTriesAgain) {
  auto slab = open(options_of(MiB, 2));
  fault::arm("slab_sync", 0, 2);
  EXPECT_TRUE(slab->sync().ok());  // nothing was written
  slab->written(1);
  EXPECT_NE(slab->sync().message().find("rank1/slab"), std::string::npos);
  EXPECT_FALSE(slab->sync().ok());
  EXPECT_TRUE(slab->sync().ok());
  fault::arm("slab_sync", 0, 1);
  EXPECT_TRUE(slab->sync().ok());  // it was synced the last time
}

TEST_F(SlabTest, AnOpenThatFailsIsTold) {
  fault::arm("slab_open", 0, 1);
  EXPECT_NE(refusal(options_of(MiB)).find("Input/output error"), std::string::npos);
  EXPECT_NE(refusal({}).find("raise disk_size"), std::string::npos);
}

}  // namespace
}  // namespace kvo
