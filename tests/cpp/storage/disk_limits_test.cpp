// The disk tier where the machine allows less: in children, whose limits and filters end with them.
#include <linux/filter.h>
#include <linux/seccomp.h>
#include <sched.h>
#include <sys/mount.h>
#include <sys/prctl.h>
#include <sys/resource.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <fstream>
#include <thread>

#include "storage/disk_tier_fixture.h"

namespace kvo {
namespace {

namespace fs = std::filesystem;

// As the default profile of a container does.
bool refuse_io_uring(int call, int error) {
  const auto wanted = static_cast<std::uint32_t>(call);
  sock_filter code[] = {
      BPF_STMT(BPF_LD | BPF_W | BPF_ABS, offsetof(seccomp_data, nr)),
      BPF_JUMP(BPF_JMP | BPF_JEQ | BPF_K, wanted, 0, 1),
      BPF_STMT(BPF_RET | BPF_K, SECCOMP_RET_ERRNO | static_cast<std::uint32_t>(error)),
      BPF_STMT(BPF_RET | BPF_K, SECCOMP_RET_ALLOW),
  };
  const sock_fprog filter{std::size(code), code};
  return prctl(PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0) == 0 && prctl(PR_SET_SECCOMP, SECCOMP_MODE_FILTER, &filter) == 0;
}

bool limit(int resource, rlim_t value) {
  const rlimit both{value, value};
  return setrlimit(static_cast<__rlimit_resource_t>(resource), &both) == 0;
}

int open_files() {
  int count = 0;
  for ([[maybe_unused]] const auto& entry : fs::directory_iterator("/proc/self/fd")) ++count;
  return count;
}

struct DiskLimits : DiskTierTest {
  // 0: all that was written was read again.
  int works() {
    auto opened = DiskTier::open(options);
    if (!opened.ok()) return std::fprintf(stderr, "%s\n", opened.status().message().c_str()), 1;
    tier = std::move(*opened);
    for (int round = 0; round < 3; ++round) {
      if (!demote(range(0, kSlots)).failed.empty()) return 2;
      memory.clear();
      if (!promote(range(0, kSlots)).failed.empty()) return 3;
    }
    return std::memcmp(memory.at(), content.at(), kPayload) == 0 ? 0 : 4;
  }
};

TEST_F(DiskLimits, IoUringRefusedIsThreads) {
  if (const std::string why = why_not("io_uring"); !why.empty()) GTEST_SKIP() << why;
  for (const int call : {SYS_io_uring_setup, SYS_io_uring_enter}) {
    for (const int error : {EPERM, ENOSYS}) {
      EXPECT_EQ(in_child([&] {
                  if (!refuse_io_uring(call, error)) return 10;
                  if (const int failed = works(); failed != 0) return failed;
                  const bool setup = call == SYS_io_uring_setup;
                  const std::string expected = std::string("threads do the I/O, io_uring is refused: ") +
                                               (setup ? "io_uring_setup: " : "io_uring_enter: ") +
                                               std::generic_category().message(error);
                  if (tier->report().note != expected) return std::puts(tier->report().note.c_str()), 11;
                  tier.reset();
                  options.io = "io_uring";
                  return works() == 1 ? 0 : 12;
                }),
                0);
    }
  }
}

TEST_F(DiskLimits, WithoutRegisteredFilesAndBuffersItIsStillIoUring) {
  if (const std::string why = why_not("io_uring"); !why.empty()) GTEST_SKIP() << why;
  options.io = "io_uring";
  EXPECT_EQ(in_child([&] {
              if (!refuse_io_uring(SYS_io_uring_register, EPERM)) return 10;
              const int failed = works();
              return failed != 0 ? failed : tier->stats().registered_bytes == 0 ? 0 : 11;
            }),
            0);
}

TEST_F(DiskLimits, LittleLockedMemoryIsNoRegisteredMemory) {
  if (geteuid() == 0) fs::permissions(dir.path, fs::perms::all);
  EXPECT_EQ(in_child([&] {
              options.slab.directories = {dir.path + "/own"};
              if (!limit(RLIMIT_MEMLOCK, 64 * KiB)) return 10;
              if (geteuid() == 0 && (setgid(65534) != 0 || setuid(65534) != 0)) return 11;
              fs::create_directory(options.slab.directories[0]);
              const int failed = works();
              return failed != 0 ? failed : tier->stats().registered_bytes == 0 ? 0 : 12;
            }),
            0);
}

TEST_F(DiskLimits, FewDescriptorsAreEnoughAndNoneIsLeft) {
  options.threads = 16;
  EXPECT_EQ(in_child([&] {
              if (!limit(RLIMIT_NOFILE, 64)) return 10;
              const int before = open_files();
              const int failed = works();
              if (failed != 0) return failed;
              tier.reset();
              return open_files() == before ? 0 : 11;
            }),
            0);
#ifndef __SANITIZE_ADDRESS__  // it needs descriptors itself to look at objects
  EXPECT_EQ(in_child([&] {
              if (!limit(RLIMIT_NOFILE, open_files() + 5)) return 10;  // not enough for a ring a thread
              return works();
            }),
            0);
#endif
}

TEST_F(DiskLimits, MemoryFileSystemsWork) {
  std::string name = "/dev/shm/storage-XXXXXX";
  if (mkdtemp(name.data()) == nullptr) GTEST_SKIP() << "no /dev/shm";
  options.slab.directories = {name};
  for (const char* io : {"auto", "threads"}) {
    options.io = io;
    EXPECT_EQ(works(), 0) << io;
    tier.reset();
  }
  fs::remove_all(name);
}

TEST_F(DiskLimits, AFileSystemThatIsFullIsAMissAndWorksAgainWhenItIsNot) {
  const std::string mounted = dir.make("mounted");
  const int result = in_child([&] {
    if (unshare(CLONE_NEWNS) != 0 || mount("none", "/", nullptr, MS_REC | MS_PRIVATE, nullptr) != 0 ||
        mount("none", mounted.c_str(), "tmpfs", 0, "size=4m") != 0) {
      return 100;
    }
    options.slab.directories = {mounted};
    options.slab.cap_bytes = 100 * MiB, options.slab.plan.bytes = 100 * 16 * kSlot;
    const std::string why = DiskTier::open(options).status().message();
    if (why.find("4.00 MiB are available: lower disk_size") == std::string::npos) return std::puts(why.c_str()), 10;

    fault::arm("slab_fallocate", 0, 1);  // space that is not ours until it is written
    options.slab.plan.bytes = kSlots * kSlot, options.most_failures = 4, options.retry_seconds = 0.01;
    auto opened = DiskTier::open(options);
    if (!opened.ok()) return 11;
    tier = std::move(*opened);
    {
      std::ofstream filler(mounted + "/filler");
      for (int i = 0; i < 4096; ++i) filler << std::string(1024, 'x');
    }
    if (demote(range(0, kSlots)).failed.size() < 4) return 12;
    if (tier->stats().off.find("No space left on device") == std::string::npos) return 13;
    fs::remove(mounted + "/filler");
    while (!tier->stats().off.empty()) {
      std::this_thread::sleep_for(std::chrono::milliseconds(20));
      demote({0});
    }
    if (!demote(range(0, kSlots)).failed.empty()) return 14;
    memory.clear();
    return promote(range(0, kSlots)).failed.empty() && tier->stats().off.empty() ? 0 : 15;
  });
  if (result == 100) GTEST_SKIP() << "may not mount";
  EXPECT_EQ(result, 0);
}

}  // namespace
}  // namespace kvo
