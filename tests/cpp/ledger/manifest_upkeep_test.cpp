// Syncs, compaction, epochs, and a disk that fails or hangs.
#include <atomic>
#include <condition_variable>
#include <thread>

#include "ledger/manifest_fixture.h"

namespace kvo {
namespace {

using namespace std::chrono_literals;

TEST_F(ManifestTest, IsSyncedWithoutBeingAsked) {
  std::atomic<int> data_syncs = 0;
  options.sync_data = [&] { return ++data_syncs, Status(); };
  options.sync_seconds = 0.01;
  reopen();
  commit(1, 1, 1);
  while (manifest->stats().undurable_records > 0) std::this_thread::sleep_for(1ms);
  EXPECT_EQ(manifest->stats().syncs, 1);
  EXPECT_EQ(data_syncs, 1);
  EXPECT_TRUE(manifest->flush(soon()).ok());
  EXPECT_EQ(manifest->stats().syncs, 1) << "nothing new, nothing to sync";
}

TEST_F(ManifestTest, ADataSyncThatFailsMakesNothingDurableAndIsTriedAgain) {
  bool fails = true;
  options.sync_data = [&]() -> Status {
    if (fails) throw std::runtime_error("slab gone");
    return {};
  };
  reopen();
  commit(1, 1, 1);
  const Status status = manifest->flush(soon());
  EXPECT_NE(status.message().find("slab gone"), std::string::npos);
  EXPECT_EQ(manifest->stats().undurable_records, 1);
  EXPECT_EQ(manifest->stats().failed_syncs, 1);
  EXPECT_EQ(manifest->stats().off, "");
  fails = false;
  EXPECT_TRUE(manifest->flush(soon()).ok());
  EXPECT_EQ(manifest->stats().undurable_records, 0);
}

TEST_F(ManifestTest, StaysShortWhileSlotsChangeHandsAThousandTimes) {
  options.compact_bytes = 4096;
  reopen();
  std::int64_t most = 0, sequence = 1;
  for (int round = 0; round < 100; ++round) {
    for (int slot = 0; slot < 20; ++slot) {
      free(slot);
      commit(round * 20 + slot, slot, sequence++);
    }
    EXPECT_TRUE(manifest->flush(soon()).ok());
    most = std::max(most, bytes());
  }
  EXPECT_GT(manifest->stats().compactions, 10);
  EXPECT_LT(most, 2 * (kManifestHeaderBytes + 20 * 72) + 4096 + 20 * 110);
  const Found found = reopen();
  EXPECT_EQ(found.size(), 20);
  for (int slot = 0; slot < 20; ++slot) EXPECT_TRUE(found.contains(key_of(99 * 20 + slot)));
}

TEST_F(ManifestTest, WhatIsAppendedDuringCompactionIsKept) {
  options.compact_bytes = 4096;
  options.slots = {5000, 5000};
  reopen();
  std::atomic<bool> stop = false;
  std::thread upkeep([&] {
    while (!stop) EXPECT_TRUE(manifest->flush(soon()).ok());
  });
  constexpr int kThreads = 2, kKeys = 2000, kKept = 10;
  std::vector<std::thread> threads;
  for (int group = 0; group < kThreads; ++group) {
    threads.emplace_back([&, group] {
      for (int i = 0; i < kKeys; ++i) {
        commit(group * kKeys + i, i, 1 + group * kKeys + i, group);
        if (i % kKept) free(i, group);
        while (manifest->stats().undurable_records > 30) std::this_thread::yield();  // not faster than the disk
      }
    });
  }
  for (std::thread& thread : threads) thread.join();
  stop = true;
  upkeep.join();
  EXPECT_EQ(manifest->stats().off, "");
  EXPECT_GT(manifest->stats().compactions, 3);
  const Found found = reopen();
  EXPECT_EQ(found.size(), kThreads * kKeys / kKept);
  for (int i = 0; i < kThreads * kKeys; i += kKept) EXPECT_TRUE(found.contains(key_of(i))) << i;
}

TEST_F(ManifestTest, ACompactionThatFailsIsTriedLater) {
  options.compact_bytes = 2048;
  const auto churn = [&](int first, int end) {
    for (int i = first; i < end; ++i) commit(i, 1, i);
    return manifest->flush(soon());
  };
  for (const char* point : {"file_open", "file_rename"}) {
    reopen();
    fault::arm(point, 0, 1);
    EXPECT_TRUE(churn(1, 46).ok());
    EXPECT_EQ(manifest->stats().failed_compactions, 1) << point;
    EXPECT_EQ(manifest->stats().compactions, 0);
    EXPECT_EQ(manifest->stats().off, "");
    EXPECT_FALSE(std::filesystem::exists(path() + ".new"));
    EXPECT_TRUE(churn(46, 81).ok());
    EXPECT_EQ(manifest->stats().compactions, 1) << point;
    EXPECT_EQ(reopen(), (Found{{key_of(80), {1, 80}}}));
  }
}

TEST_F(ManifestTest, NeverGrowsPastItsBound) {
  options.compact_bytes = 1024;
  reopen();
  fault::arm("file_open", 0, 1'000'000);
  for (int i = 1; i < 500; ++i) commit(i, 1, i);
  EXPECT_NE(manifest->stats().off.find("too long"), std::string::npos);
  EXPECT_LE(bytes(), 2 * (2 * 544 + 1024) + 16 * 1024);
  EXPECT_GT(manifest->stats().dropped_records, 100);
  fault::disarm_all();
  EXPECT_TRUE(reopen().empty()) << "what it no longer follows it must not name";
}

// Of a disk that is small: what all slots need of the file, several times.
TEST_F(ManifestTest, TakesNoMoreThanItMayWithTheFileThatReplacesIt) {
  options.most_bytes = 64 << 10;
  options.slots = {100};
  reopen();
  std::int64_t most = 0;
  for (int i = 1; i < 3000; ++i) {
    free(i % 100), commit(i, i % 100, i);
    std::int64_t both = bytes();
    std::error_code none;
    if (const auto fresh = std::filesystem::file_size(path() + ".new", none); !none) both += static_cast<long>(fresh);
    most = std::max(most, both);
    if (i % 50 != 0) continue;
    EXPECT_TRUE(manifest->flush(soon()).ok());
  }
  EXPECT_LE(most, options.most_bytes);
  EXPECT_GT(most, options.most_bytes / 4);
  EXPECT_EQ(manifest->stats().off, "");
  EXPECT_GT(manifest->stats().compactions, 10);
  EXPECT_EQ(manifest->stats().dropped_records, 0);
  EXPECT_EQ(reopen().size(), 100u);
}

TEST_F(ManifestTest, WithoutRoomCommitsAreDroppedAndFreesAreNot) {
  options.most_bytes = 32 << 10;
  options.slots = {100};
  reopen();
  fault::arm("file_open", 0, 1'000'000);  // it cannot be compacted
  for (int i = 1; i < 3000; ++i) free(i % 100), commit(i, i % 100, i);
  EXPECT_EQ(manifest->stats().off, "");
  EXPECT_LE(bytes(), options.most_bytes / 2);
  EXPECT_GT(manifest->stats().dropped_records, 1000);
  fault::disarm_all();
  EXPECT_TRUE(reopen().empty()) << "all these slots have other keys now";
  for (int i = 0; i < 100; ++i) commit(i, i, 5000 + i);
  EXPECT_EQ(reopen().size(), 100u);
}

TEST_F(ManifestTest, AFreeOfWhatIsNotNamedIsNotWritten) {
  reopen();
  const std::int64_t before = bytes();
  free(5), free(5);
  EXPECT_EQ(bytes(), before);
  commit(1, 5, 1);
  reopen();
  free(5);
  EXPECT_TRUE(reopen().empty());
  commit(1, 5, 1);
  EXPECT_TRUE(manifest->reset(soon()).ok());
  free(5);
  EXPECT_EQ(bytes(), before);
}

TEST_F(ManifestTest, AfterResetNothingOldIsFoundAndOldCommitsAreDropped) {
  reopen();
  const std::uint64_t identity = manifest->identity();
  commit(1, 1, 1);
  EXPECT_TRUE(manifest->reset(soon()).ok());
  EXPECT_EQ(manifest->stats().epoch, 2);
  const std::string name = key_of(2);
  for (const std::int64_t epoch : {1, 2, 3}) {
    const ManifestCommit chunk{name, epoch, 10 + epoch};
    manifest->commit(epoch, 0, {&chunk, 1});
  }
  EXPECT_EQ(manifest->stats().stale_commits, 2);
  EXPECT_EQ(reopen(), (Found{{key_of(2), {2, 12}}}));
  EXPECT_EQ(manifest->stats().epoch, 2);
  EXPECT_EQ(manifest->identity(), identity);
  EXPECT_EQ(opening.not_believed, "");
}

TEST_F(ManifestTest, AResetThatCannotWriteStillLeavesNothingOld) {
  for (const char* point : {"file_open", "file_write", "file_sync", "file_rename"}) {
    reopen();
    commit(1, 1, 1);
    fault::arm(point, 0, 1);
    EXPECT_TRUE(manifest->reset(soon()).ok()) << point;
    EXPECT_NE(manifest->stats().off, "") << point;
    EXPECT_FALSE(std::filesystem::exists(path())) << point;
    commit(2, 2, 2);
    EXPECT_EQ(manifest->stats().dropped_records, 1);
    EXPECT_TRUE(reopen().empty()) << point;
  }
}

TEST_F(ManifestTest, AFailedWriteOrSyncTurnsItOffUntilAReset) {
  for (const bool write_fails : {true, false}) {
    reopen();
    commit(1, 1, 1);
    fault::arm(write_fails ? "file_write" : "file_sync", 0, 1);
    commit(2, 2, 2);
    EXPECT_FALSE(manifest->flush(soon()).ok());
    EXPECT_NE(manifest->stats().off.find(write_fails ? "No space left" : "error"), std::string::npos);
    EXPECT_FALSE(std::filesystem::exists(path()));
    commit(3, 3, 3);
    free(1);
    EXPECT_EQ(manifest->stats().dropped_records, write_fails ? 3 : 2);
    EXPECT_TRUE(manifest->reset(soon()).ok());
    EXPECT_EQ(manifest->stats().off, "");
    commit(4, 4, 4);
    EXPECT_EQ(reopen(), (Found{{key_of(4), {4, 4}}}));
    free(4);
  }
}

TEST_F(ManifestTest, OpeningFailsWhereNothingCanBeWrittenAndLosesNothing) {
  reopen();
  commit(1, 1, 1);
  manifest.reset();
  for (const char* point : {"file_open", "file_write", "file_sync", "file_rename"}) {
    fault::arm(point, 0, 1);
    EXPECT_FALSE(Manifest::open(options).ok()) << point;
  }
  EXPECT_EQ(reopen().size(), 1);
}

// A data sync that hangs until told.
struct HangingDisk {
  std::mutex mutex;
  std::condition_variable changed;
  bool hangs = true, reached = false;

  Status sync() {
    std::unique_lock lock(mutex);
    reached = true;
    changed.notify_all();
    changed.wait(lock, [&] { return !hangs; });
    return {};
  }
  void wait_reached() {
    std::unique_lock lock(mutex);
    changed.wait(lock, [&] { return reached; });
  }
  void go_on() {
    std::lock_guard lock(mutex);
    hangs = false;
    changed.notify_all();
  }
};

TEST_F(ManifestTest, ADiskThatHangsHoldsUpNobodyPastADeadline) {
  const auto disk = std::make_shared<HangingDisk>();
  options.sync_data = [disk] { return disk->sync(); };
  reopen();
  commit(1, 1, 1);
  const auto now = [] { return std::chrono::steady_clock::now(); };
  EXPECT_EQ(manifest->flush(now() + 10ms).code(), Code::timeout);
  disk->wait_reached();
  commit(2, 2, 2);  // appends go on
  EXPECT_EQ(manifest->stats().commits, 2);
  EXPECT_EQ(manifest->reset(now()).code(), Code::timeout);
  EXPECT_EQ(manifest->close(now() + 10ms).code(), Code::timeout);
  commit(3, 3, 3);
  EXPECT_EQ(manifest->flush(soon()).code(), Code::closed);
  // The next owner's manifest is safe from the thread that wakes up late.
  options.sync_data = nullptr;
  auto next = Manifest::open(options);
  ASSERT_TRUE(next.ok());
  EXPECT_EQ((*next)->take_opening().chunks.size(), 2);
  manifest.reset();
  disk->go_on();
  while (disk.use_count() > 1) std::this_thread::sleep_for(1ms);  // its thread is gone
  next->reset();
  EXPECT_EQ(reopen().size(), 2);
  EXPECT_EQ(manifest->stats().epoch, 1);
}

TEST_F(ManifestTest, EveryResetIsAnEpochAlsoThoseThatPiledUp) {
  const auto disk = std::make_shared<HangingDisk>();
  options.sync_data = [disk] { return disk->sync(); };
  reopen();
  commit(1, 1, 1);
  const auto now = std::chrono::steady_clock::now();
  EXPECT_EQ(manifest->flush(now).code(), Code::timeout);
  disk->wait_reached();
  EXPECT_EQ(manifest->reset(now).code(), Code::timeout);
  EXPECT_EQ(manifest->reset(now).code(), Code::timeout);
  disk->go_on();
  EXPECT_TRUE(manifest->reset(soon()).ok());
  EXPECT_EQ(manifest->stats().epoch, 4);
  EXPECT_TRUE(reopen().empty());
  EXPECT_EQ(manifest->stats().epoch, 4);
}

TEST_F(ManifestTest, CloseMakesAllDurableAndEndsIt) {
  options.boot = 1;
  reopen();
  commit(1, 1, 1);
  EXPECT_TRUE(manifest->close(soon()).ok());
  EXPECT_EQ(manifest->stats().undurable_records, 0);
  commit(2, 2, 2);
  EXPECT_EQ(manifest->stats().dropped_records, 1);
  EXPECT_EQ(manifest->reset(soon()).code(), Code::closed);
  EXPECT_TRUE(manifest->close(soon()).ok());
  options.boot = 2;
  EXPECT_EQ(reopen().size(), 1);
}

}  // namespace
}  // namespace kvo
