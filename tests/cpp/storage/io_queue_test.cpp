#include "storage/io_queue.h"

#include <thread>

#include "storage/memory_queue.h"
#include "storage/open_queue.h"
#include "storage/storage_fixture.h"

namespace kvo {
namespace {

constexpr std::int64_t kFileBytes = 4 * MiB;
constexpr int kDepth = 8;

// io_uring and threads on a file of random bytes, which `content` holds, too.
struct IoQueueTest : StorageTest, testing::WithParamInterface<const char*> {
  void SetUp() override {
    if (const std::string why = why_not(GetParam()); !why.empty()) GTEST_SKIP() << why;
  }
  IoQueueTest() {
    const std::string path = dir.path + "/file";
    file = UniqueFd(::open(path.c_str(), O_RDWR | O_CREAT, 0600));
    EXPECT_EQ(pwrite(file.get(), content.at(), kFileBytes, 0), kFileBytes);
    auto opened = open_io_queue(GetParam(), {{file.get()}, kDepth, memory.at(), memory.bytes()});
    if (opened.ok()) queue = std::move(opened->queue);
  }

  IoRequest request(IoKind kind, std::int64_t offset, std::int64_t bytes, std::uint64_t tag = 0) {
    return {kind, 0, offset, memory.at(offset), bytes, tag};
  }
  // Until nothing is in flight.
  std::vector<IoResult> reap_all() {
    std::vector<IoResult> results;
    while (queue->in_flight() > 0) queue->reap(results, soon());
    return results;
  }
  IoResult one(const IoRequest& only) {
    queue->submit({&only, 1});
    const auto results = reap_all();
    EXPECT_EQ(results.size(), 1u);
    return results[0];
  }
  void expect_right(std::int64_t offset, std::int64_t bytes) {
    EXPECT_EQ(std::memcmp(memory.at(offset), content.at(offset), bytes), 0);
  }

  Memory content{kFileBytes, 2}, memory{kFileBytes, 3};
  UniqueFd file;
  std::unique_ptr<IoQueue> queue;
};

TEST_P(IoQueueTest, ManyRequestsAtATimeReadAndWriteWhatTheyShould) {
  std::mt19937 random(4);
  constexpr std::int64_t kPiece = 64 * KiB;
  for (const IoKind kind : {IoKind::read, IoKind::write, IoKind::read}) {
    std::vector<IoResult> results;
    std::vector<int> seen(kFileBytes / kPiece);
    if (kind == IoKind::write) std::memset(memory.at(), 7, kFileBytes), std::memset(content.at(), 7, kFileBytes);
    for (std::int64_t piece = 0; piece < kFileBytes / kPiece; ++piece) {
      while (queue->room() == 0) queue->reap(results, soon());
      const IoRequest next = request(kind, piece * kPiece, kPiece, piece);
      queue->submit({&next, 1});
    }
    for (const IoResult& result : reap_all()) results.push_back(result);
    for (const IoResult& result : results) {
      EXPECT_EQ(result.error, 0);
      EXPECT_EQ(result.bytes, kPiece);
      ++seen[result.tag];
    }
    EXPECT_EQ(std::count(seen.begin(), seen.end(), 1), kFileBytes / kPiece);
    expect_right(0, kFileBytes);
  }
  EXPECT_EQ(queue->strays(), 0);
  EXPECT_EQ(queue->room(), kDepth);
}

TEST_P(IoQueueTest, ShortAndInterruptedOnesGoOn) {
  for (const char* point : {"io_short", "io_odd", "io_eintr", "io_eagain"}) {
    for (const IoKind kind : {IoKind::read, IoKind::write}) {
      fault::arm(point, 0, 3);
      const IoResult result = one(request(kind, 64 * KiB, 3 * MiB));
      EXPECT_EQ(fault::armed_count, 0) << point;
      EXPECT_EQ(result.error, 0) << point;
      EXPECT_EQ(result.bytes, 3 * MiB) << point;
      expect_right(64 * KiB, 3 * MiB);
    }
  }
}

TEST_P(IoQueueTest, ErrorsAreTold) {
  const std::pair<const char*, int> errors[] = {{"io_eio", EIO},       {"io_enospc", ENOSPC}, {"io_erofs", EROFS},
                                                {"io_estale", ESTALE}, {"io_submit", EIO},    {"io_long", EIO}};
  for (const auto& [point, error] : errors) {
    fault::arm(point, 0, 1);
    EXPECT_EQ(one(request(IoKind::read, 0, 64 * KiB)).error, error) << point;
    EXPECT_EQ(one(request(IoKind::read, 0, 64 * KiB)).error, 0) << point;
  }
}

// A request that is interrupted for ever, or that moves on by less than a block, ends all the same.
TEST_P(IoQueueTest, NothingGoesOnForEver) {
  fault::arm("io_eagain", 0, 1000);
  EXPECT_EQ(one(request(IoKind::read, 0, 64 * KiB)).error, EAGAIN);
  fault::disarm_all();
  fault::arm("io_odd", 0, 1000);
  const IoResult result = one(request(IoKind::read, 0, 64 * KiB));
  EXPECT_EQ(result.error, 0);
  EXPECT_EQ(result.bytes, 0);
}

TEST_P(IoQueueTest, AFileThatEndsIsCutShortAndNotZeros) {
  for (const std::int64_t end : {kFileBytes - 4096, kFileBytes - 5000, kFileBytes - 64 * KiB}) {
    ASSERT_EQ(ftruncate(file.get(), end), 0);
    const IoResult result = one(request(IoKind::read, kFileBytes - 64 * KiB, 64 * KiB));
    EXPECT_EQ(result.error, 0);
    EXPECT_EQ(result.bytes, round_down(end - (kFileBytes - 64 * KiB), 4096));
  }
}

// An early return with requests in flight would leave completions behind that the next ones take for theirs.
TEST_P(IoQueueTest, OneFailureInABatchLeavesNothingBehind) {
  constexpr std::int64_t kPiece = 8 * KiB;
  for (int round = 0; round < 1000; ++round) {
    if (round % 50 == 0) fault::arm("io_eio", 3, 1);
    std::vector<IoRequest> batch;
    for (int i = 0; i < kDepth; ++i) batch.push_back(request(IoKind::read, (round + i * 7) % 500 * kPiece, kPiece, i));
    memory.clear();
    queue->submit(batch);
    const auto results = reap_all();
    ASSERT_EQ(results.size(), batch.size());
    int failures = 0;
    for (const IoResult& result : results) {
      failures += result.error != 0;
      if (result.error == 0) expect_right(batch[result.tag].offset, kPiece);
    }
    ASSERT_EQ(failures, round % 50 == 0);
  }
  EXPECT_EQ(queue->strays(), 0);
}

TEST_P(IoQueueTest, WakeAndDeadlineEndAReap) {
  std::vector<IoResult> results;
  std::thread waker([&] {
    std::this_thread::sleep_for(std::chrono::milliseconds(20));
    queue->wake();
  });
  queue->reap(results, soon());  // hangs without the wake
  waker.join();
  queue->wake();
  queue->reap(results, soon());  // a wake before the call counts
  const auto deadline = std::chrono::steady_clock::now() + std::chrono::milliseconds(20);
  queue->reap(results, deadline);
  EXPECT_GE(std::chrono::steady_clock::now(), deadline);  // and only once
  EXPECT_TRUE(results.empty());
  EXPECT_TRUE(queue->broken().ok());
}

TEST_P(IoQueueTest, RegisteredMemoryAndOtherMemoryReadTheSame) {
  EXPECT_EQ(queue->memory_ready(kFileBytes - 1), 0);
  const std::int64_t registered = queue->memory_ready(kFileBytes);
  EXPECT_EQ(registered, GetParam() == std::string("io_uring") ? kFileBytes : 0);
  EXPECT_EQ(one(request(IoKind::read, 0, MiB)).bytes, MiB);
  expect_right(0, MiB);
  Memory other(MiB);
  const IoResult result = one({IoKind::read, 0, MiB, other.at(), MiB, 0});
  EXPECT_EQ(result.bytes, MiB);
  EXPECT_EQ(std::memcmp(other.at(), content.at(MiB), MiB), 0);
  EXPECT_EQ(one(request(IoKind::write, 0, MiB)).bytes, MiB);
}

INSTANTIATE_TEST_SUITE_P(Real, IoQueueTest, testing::Values("io_uring", "threads"),
                         [](const auto& info) { return std::string(info.param); });

// Any order, any parts, interruptions and completions that come twice.
TEST(MemoryQueue, WhateverTheOrderTheBytesAreRight) {
  std::int64_t strays = 0;
  for (unsigned seed = 0; seed < 40; ++seed) {
    const Memory content(MiB, seed + 100), memory(MiB, 5);
    std::vector<MemoryQueue::File> files(2);
    files[1] = content.copy();
    MemoryQueue queue(files, 5, seed);
    std::vector<IoResult> results;
    const auto move_all = [&](IoKind kind, int file) {
      for (std::int64_t offset = 0; offset < MiB; offset += 32 * KiB) {
        while (queue.room() == 0) queue.reap(results, soon());
        const IoRequest request{kind, file, offset, memory.at(offset), 32 * KiB, 0};
        queue.submit({&request, 1});
      }
      while (queue.in_flight() > 0) queue.reap(results, soon());
    };
    move_all(IoKind::read, 1);
    files[0].resize(MiB);
    move_all(IoKind::write, 0);
    for (const IoResult& result : results) ASSERT_EQ(result.bytes, 32 * KiB) << seed << " " << result.error;
    ASSERT_EQ(files[0], content.copy()) << seed;
    strays += queue.strays();
  }
  EXPECT_GT(strays, 0);
}

TEST(OpenQueue, NamesTheChoices) {
  EXPECT_EQ(open_io_queue("aio", {}).status().message(), "disk_io is \"aio\": choose auto, io_uring or threads");
}

TEST(OpenQueue, ARefusedRingIsThreadsAndSaysSo) {
  fault::arm("uring_open", 0, 2);
  auto opened = open_io_queue("auto", {{}, 2});
  ASSERT_TRUE(opened.ok());
  EXPECT_STREQ(opened->queue->name(), "threads");
  EXPECT_EQ(opened->note, "threads do the I/O, io_uring is refused: io_uring_setup: Operation not permitted");
  EXPECT_EQ(open_io_queue("io_uring", {{}, 2}).status().code(), Code::unsupported);
  fault::disarm_all();
}

TEST(OpenQueue, AnOlderKernelHasAPlainerRing) {
  if (const std::string why = why_not("io_uring"); !why.empty()) GTEST_SKIP() << why;
  fault::arm("uring_flags", 0, 1);
  const auto opened = open_io_queue("io_uring", {{}, 2});
  EXPECT_EQ(opened.status().message(), "");
  fault::disarm_all();
}

}  // namespace
}  // namespace kvo
