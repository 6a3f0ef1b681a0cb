#include "memory/limits.h"

#include <gtest/gtest.h>
#include <sched.h>
#include <stdlib.h>
#include <sys/resource.h>

#include <filesystem>
#include <fstream>

#include "base/units.h"
#include "memory/numa.h"

namespace kvo {
namespace {

namespace fs = std::filesystem;

// A made-up /proc and /sys/fs/cgroup.
class Limits : public testing::Test {
 protected:
  Limits() {
    char name[] = "/tmp/kvo_limits_XXXXXX";
    root_ = mkdtemp(name);
    roots_ = {(root_ / "cgroup").string(), (root_ / "proc").string()};
  }
  ~Limits() override { fs::remove_all(root_); }

  void write(const std::string& path, const std::string& text) {
    fs::create_directories((root_ / path).parent_path());
    std::ofstream(root_ / path) << text << "\n";
  }
  void own_cgroup(const std::string& text) { write("proc/self/cgroup", text); }
  Status check(std::int64_t bytes, bool needs_memlock = false) {
    auto result = check_limits(bytes, roots_, needs_memlock);
    return result.ok() ? Status() : result.status();
  }
  // The largest size that passes is exactly `bytes`.
  void expect_available(std::int64_t bytes) {
    EXPECT_TRUE(check(bytes).ok()) << check(bytes).message();
    EXPECT_EQ(check(bytes + 1).code(), Code::memory);
  }

  fs::path root_;
  SystemRoots roots_;
};

TEST_F(Limits, NoFilesNoLimit) { EXPECT_TRUE(check(INT64_MAX).ok()); }

TEST_F(Limits, V2UsageWithoutFileCache) {
  own_cgroup("0::/pod/worker");
  write("cgroup/pod/worker/memory.max", "1000000");
  write("cgroup/pod/worker/memory.current", "600000");
  write("cgroup/pod/worker/memory.stat", "anon 200000\nfile 400000\ninactive_file 300000\nactive_file 100000\nslab 5");
  expect_available(800000);
}

TEST_F(Limits, V2CacheAboveUsageIsNotMoreThanTheLimit) {
  own_cgroup("0::/");
  write("cgroup/memory.max", "1000000");
  write("cgroup/memory.current", "100");
  write("cgroup/memory.stat", "inactive_file 300000");
  expect_available(1000000);
}

TEST_F(Limits, V2UsageAboveTheLimitLeavesNothing) {
  own_cgroup("0::/");
  write("cgroup/memory.max", "1000");
  write("cgroup/memory.current", "5000");
  EXPECT_EQ(check(1).code(), Code::memory);
}

TEST_F(Limits, V2AncestorsBindToo) {
  own_cgroup("0::/a/b/c");
  write("cgroup/a/b/c/memory.max", "max");
  write("cgroup/a/b/memory.max", "5000000");
  write("cgroup/a/memory.max", "3000000");
  write("cgroup/a/memory.current", "1000000");
  write("cgroup/other/memory.max", "10");
  expect_available(2000000);
}

// In a container without a cgroup namespace the path is the host's; the container's group is mounted at the root.
TEST_F(Limits, RootStandsForAPathThatIsNotHere) {
  own_cgroup("0::/docker/0123456789");
  write("cgroup/memory.max", "700000");
  expect_available(700000);
}

TEST_F(Limits, V1UsageWithoutFileCache) {
  own_cgroup("12:pids:/x\n4:memory:/pod\n1:name=systemd:/\n0::/");
  write("cgroup/memory/memory.limit_in_bytes", "9223372036854771712");
  write("cgroup/memory/pod/memory.limit_in_bytes", "1000000");
  write("cgroup/memory/pod/memory.usage_in_bytes", "700000");
  write("cgroup/memory/pod/memory.stat",
        "inactive_file 1\nactive_file 1\ntotal_inactive_file 150000\ntotal_active_file 50000");
  expect_available(500000);
}

TEST_F(Limits, V1WithoutLimit) {
  own_cgroup("4:memory:/pod");
  write("cgroup/memory/pod/memory.limit_in_bytes", "9223372036854771712");
  write("cgroup/memory/pod/memory.usage_in_bytes", "700000");
  EXPECT_TRUE(check(1024 * GiB).ok());
}

TEST_F(Limits, UnreadableFilesAreNoLimit) {
  own_cgroup("nonsense\n7:memory\n0:relative:x\n0::");
  write("cgroup/memory.max", "not a number");
  write("cgroup/memory.current", "");
  EXPECT_TRUE(check(GiB).ok());
}

TEST_F(Limits, TheMessageNamesEveryNumberAndTheOption) {
  own_cgroup("0::/pod");
  write("cgroup/pod/memory.max", std::to_string(2 * GiB));
  write("cgroup/pod/memory.current", std::to_string(GiB));
  const std::string message = check(4 * GiB).message();
  for (const char* part :
       {"4.00 GiB", "4294967296", "1.00 GiB", "1073741824", "2.00 GiB", "pod/memory.max", "`host`"}) {
    EXPECT_NE(message.find(part), std::string::npos) << part << " is not in: " << message;
  }
}

TEST_F(Limits, MemAvailableOnlyWarns) {
  write("proc/meminfo", "MemTotal: 2048 kB\nMemFree: 10 kB\nMemAvailable:    1024 kB");
  auto fits = check_limits(MiB, roots_, false);
  ASSERT_TRUE(fits.ok());
  EXPECT_EQ(*fits, "");
  auto above = check_limits(MiB + 1, roots_, false);
  ASSERT_TRUE(above.ok());
  EXPECT_NE(above->find("MemAvailable"), std::string::npos);
}

class Memlock : public Limits {
 protected:
  Memlock() {
    getrlimit(RLIMIT_MEMLOCK, &before_);
    rlimit lowered = before_;
    lowered.rlim_cur = 64 * KiB;
    EXPECT_EQ(setrlimit(RLIMIT_MEMLOCK, &lowered), 0);
  }
  ~Memlock() override { setrlimit(RLIMIT_MEMLOCK, &before_); }
  rlimit before_{};
};

TEST_F(Memlock, CountsOnlyWhereItApplies) {
  write("proc/self/status", "VmPin:\t      16 kB\nCapEff:\t00000000a80425fb");
  EXPECT_TRUE(check(GiB, false).ok());
  EXPECT_TRUE(check(48 * KiB, true).ok());
  const Status refused = check(48 * KiB + 1, true);
  EXPECT_EQ(refused.code(), Code::memory);
  EXPECT_NE(refused.message().find("ulimit -l"), std::string::npos);
  EXPECT_NE(refused.message().find("`host`"), std::string::npos);
}

TEST_F(Memlock, TheRightToLockLiftsIt) {
  write("proc/self/status", "CapEff:\t000001ffffffffff");
  EXPECT_TRUE(check(GiB, true).ok());
  write("proc/self/status", "CapEff:\t0000000000004000");  // CAP_IPC_LOCK alone
  EXPECT_TRUE(check(GiB, true).ok());
  write("proc/self/status", "CapEff:\t000001ffffffbfff");  // all but CAP_IPC_LOCK
  EXPECT_FALSE(check(GiB, true).ok());
}

TEST_F(Limits, CoresFollowAffinityAndQuota) {
  cpu_set_t before;
  ASSERT_EQ(sched_getaffinity(0, sizeof before, &before), 0);
  EXPECT_EQ(usable_cores(roots_), CPU_COUNT(&before));
  cpu_set_t one;
  CPU_ZERO(&one);
  for (int core = 0; CPU_COUNT(&one) == 0; ++core) {
    if (CPU_ISSET(core, &before)) CPU_SET(core, &one);
  }
  ASSERT_EQ(sched_setaffinity(0, sizeof one, &one), 0);
  EXPECT_EQ(usable_cores(roots_), 1);
  ASSERT_EQ(sched_setaffinity(0, sizeof before, &before), 0);

  own_cgroup("3:cpu,cpuacct:/v1\n0::/pod/worker");
  write("cgroup/pod/worker/cpu.max", "max 100000");
  EXPECT_EQ(usable_cores(roots_), CPU_COUNT(&before));
  write("cgroup/pod/cpu.max", "50000 100000");
  EXPECT_EQ(usable_cores(roots_), 1);
  fs::remove_all(root_ / "cgroup");
  write("cgroup/cpu/v1/cpu.cfs_quota_us", "-1");
  write("cgroup/cpu/v1/cpu.cfs_period_us", "100000");
  EXPECT_EQ(usable_cores(roots_), CPU_COUNT(&before));
  write("cgroup/cpu/v1/cpu.cfs_quota_us", "100000");
  EXPECT_EQ(usable_cores(roots_), 1);
}

TEST(Numa, CpuLists) {
  const auto cores = parse_cpu_list("0-2,5\n");
  ASSERT_TRUE(cores);
  EXPECT_EQ(CPU_COUNT(&*cores), 4);
  EXPECT_TRUE(CPU_ISSET(5, &*cores));
  EXPECT_FALSE(CPU_ISSET(3, &*cores));
  for (const char* list : {"", "\n", "x", "-3"}) EXPECT_FALSE(parse_cpu_list(list)) << list;
  EXPECT_TRUE(parse_cpu_list("0-99999"));
}

TEST(Numa, ANodeThatIsNotThereIsAStatus) {
  alignas(4096) static std::byte page[4096];
  for (const int node : {-1, 1000, 5000}) EXPECT_EQ(prefer_node(page, sizeof page, node).code(), Code::unsupported);
}

}  // namespace
}  // namespace kvo
