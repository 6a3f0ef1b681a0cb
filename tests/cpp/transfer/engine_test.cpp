// The engine on the host device: order, lifetime, bounds, failures. Runs under ASan/UBSan and TSan.
#include "transfer/engine.h"

#include <gtest/gtest.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cstring>
#include <numeric>

#include "base/fault.h"
#include "device/host_device.h"

namespace kvo {
namespace {

using namespace std::chrono_literals;
using Ids = std::vector<std::int64_t>;

Deadline in(std::chrono::milliseconds time) { return std::chrono::steady_clock::now() + time; }

constexpr std::int64_t kBlocks = 64, kPageBytes = 3000, kStride = 4096;

class EngineTest : public ::testing::Test {
 protected:
  void SetUp() override { open(8); }
  void TearDown() override { fault::disarm_all(); }

  void open(std::int64_t depth) {
    engine_.reset();
    GroupGeometry group;
    group.pages = {{reinterpret_cast<std::uintptr_t>(tensor_.data()), kStride, kPageBytes}};
    group.num_blocks = kBlocks;
    group.blocks_per_chunk = 2;
    ArenaOptions options;
    options.bytes = 40 * group.slot_bytes();
    auto device = make_host_device();
    auto arena = Arena::create(device, options);
    ASSERT_TRUE(arena.ok()) << arena.status().message();
    auto engine = Engine::create(device, std::shared_ptr<Arena>(std::move(*arena)), {group}, depth);
    ASSERT_TRUE(engine.ok()) << engine.status().message();
    engine_ = std::move(*engine);
  }
  Result<TransferHandle> submit(Direction direction, const Ids& blocks, const Ids& slots, StreamHandle stream = 0,
                                std::int64_t job = 0) {
    return engine_->submit({0, blocks, slots, 0}, {direction, job, stream, nullptr});
  }
  void fill_block(std::int64_t block, int value) { std::memset(tensor_.data() + block * kStride, value, kPageBytes); }
  bool block_is(std::int64_t block, int value) const {
    const std::byte* page = tensor_.data() + block * kStride;
    return std::all_of(page, page + kPageBytes, [&](std::byte each) { return each == static_cast<std::byte>(value); });
  }
  static TransferResult finish(TransferHandle& handle) {
    EXPECT_TRUE(handle.lane->wait(*handle.transfer, in(10s)).ok());
    return handle.transfer->result;
  }

  std::vector<std::byte> tensor_ = std::vector<std::byte>(kBlocks * kStride);
  std::unique_ptr<Engine> engine_;
};

TEST_F(EngineTest, StoreThenLoadBringsTheBytesBack) {
  fill_block(5, 1), fill_block(9, 2);
  auto stored = submit(Direction::store, {5, 9}, {3});
  ASSERT_TRUE(stored.ok()) << stored.status().message();
  EXPECT_EQ(finish(*stored).bytes, 2 * kPageBytes);
  auto loaded = submit(Direction::load, {20, 21}, {3});
  ASSERT_TRUE(loaded.ok());
  ASSERT_TRUE(loaded->lane->before(*loaded->transfer, 0, in(10s)).ok());
  EXPECT_TRUE(block_is(20, 1) && block_is(21, 2));
}

TEST_F(EngineTest, StoreWaitsForWhatItsStreamWroteBefore) {
  HostStream stream;
  stream.delay(0.05);
  stream.fill(tensor_.data(), 2 * kStride, 7);
  auto stored = submit(Direction::store, {0, 1}, {0}, stream.handle());
  ASSERT_TRUE(stored.ok());
  EXPECT_TRUE(finish(*stored).ok);
  EXPECT_EQ(engine_->slot_address(0, 0)[0], std::byte{7});
  EXPECT_EQ(engine_->slot_address(0, 0)[2 * kPageBytes - 1], std::byte{7});
}

TEST_F(EngineTest, LaterWorkOnAStreamWaitsAfterBefore) {
  std::vector<std::byte> seen(kPageBytes);
  std::memset(engine_->slot_address(0, 1), 9, 2 * kPageBytes);
  HostStream stream, slow;
  slow.delay(0.05);
  auto loaded = submit(Direction::load, {2, 3}, {1}, slow.handle());
  ASSERT_TRUE(loaded.ok());
  ASSERT_TRUE(loaded->lane->before(*loaded->transfer, stream.handle(), in(10s)).ok());
  const CopySpan read{seen.data(), tensor_.data() + 2 * kStride, kPageBytes};
  ASSERT_TRUE(stream.copy(std::span(&read, 1), Direction::store).ok());
  stream.synchronize();
  EXPECT_EQ(seen[0], std::byte{9});
}

TEST_F(EngineTest, BadRequestsAreRefusedAndNothingIsQueued) {
  const auto refused = [&](const Ids& blocks, const Ids& slots, const char* part, std::int64_t skip = 0,
                           int group = 0) {
    auto handle = engine_->submit({group, blocks, slots, skip}, {});
    ASSERT_FALSE(handle.ok());
    EXPECT_EQ(handle.status().code(), Code::invalid);
    EXPECT_NE(handle.status().message().find(part), std::string::npos) << handle.status().message();
  };
  refused({1, 1}, {0}, "block id 1 is given twice");
  refused({1, kBlocks}, {0}, "block id 64 at position 1: group 0 has blocks 0 to 63");
  refused({-1, 2}, {0}, "block id -1");
  refused({1, 2, 3, 4}, {6, 6}, "slot 6 is given twice");
  refused({1, 2}, {40}, "slot 40");
  refused({1, 2, 3}, {0}, "3 block ids for 1 chunks");
  refused({1, 2}, {0}, "skip_blocks 2", 2);
  refused({1, 2}, {0}, "group 1", 0, 1);
  EXPECT_EQ(engine_->stats(Direction::store).unfinished, 0);
}

TEST_F(EngineTest, TheQueueIsBoundedAndRecovers) {
  HostStream slow;
  slow.delay(0.1);
  std::vector<TransferHandle> handles;
  for (std::int64_t i = 0; i < 8; ++i) {
    auto handle = submit(Direction::store, {2 * i, 2 * i + 1}, {i}, slow.handle());
    ASSERT_TRUE(handle.ok());
    handles.push_back(*handle);
  }
  auto one_more = submit(Direction::store, {0, 1}, {9}, slow.handle());
  ASSERT_FALSE(one_more.ok());
  EXPECT_EQ(one_more.status().code(), Code::queue_full);
  EXPECT_TRUE(submit(Direction::load, {40, 41}, {39}).ok()) << "each direction has its own bound";
  for (auto& handle : handles) EXPECT_TRUE(finish(handle).ok);
  EXPECT_TRUE(submit(Direction::store, {0, 1}, {9}).ok());
}

TEST_F(EngineTest, CancelBeforeStartOnly) {
  fault::arm("enqueue_delay", 0, 1);
  auto first = submit(Direction::store, {0, 1}, {0});
  ASSERT_TRUE(first.ok());
  EXPECT_TRUE(finish(*first).ok);
  EXPECT_FALSE(first->lane->cancel(*first->transfer));

  fault::arm("enqueue_delay", 0, 1);
  fill_block(4, 1);
  auto starting = submit(Direction::store, {0, 1}, {0});
  auto queued = submit(Direction::store, {4, 5}, {1}, 0, 1);
  ASSERT_TRUE(starting.ok() && queued.ok());
  EXPECT_TRUE(queued->lane->cancel(*queued->transfer));
  EXPECT_EQ(finish(*queued).status.code(), Code::cancelled);
  EXPECT_TRUE(finish(*starting).ok);
  EXPECT_EQ(engine_->slot_address(0, 1)[0], std::byte{0}) << "nothing was copied";
  EXPECT_EQ(engine_->poll()->size(), 1u) << "a cancelled job is reported";
}

TEST_F(EngineTest, FailureOfTheNthCopyFailsThatTransferAlone) {
  fault::arm("copy", 1, 1);
  auto bad = submit(Direction::store, {0, 2}, {0}, 0, 1);
  ASSERT_TRUE(bad.ok());
  const TransferResult result = finish(*bad);
  EXPECT_FALSE(result.ok);
  EXPECT_NE(result.status.message().find("copy 1 of 2"), std::string::npos) << result.status.message();
  EXPECT_FALSE(bad->lane->before(*bad->transfer, 0, in(1s)).ok());
  auto good = submit(Direction::store, {0, 2}, {0}, 0, 2);
  ASSERT_TRUE(good.ok());
  EXPECT_TRUE(finish(*good).ok);
  auto finished = engine_->poll();
  ASSERT_TRUE(finished.ok());
  ASSERT_EQ(finished->size(), 2u);
  EXPECT_EQ((*finished)[1]->job, 2);
  EXPECT_TRUE(engine_->poll()->empty()) << "each result is handed out once";
}

TEST_F(EngineTest, FailedEventFailsTheTransferOrTheSubmit) {
  fault::arm("event", 0, 1);
  EXPECT_EQ(submit(Direction::store, {0, 1}, {0}).status().code(), Code::device);
  fault::arm("event", 1, 1);
  auto handle = submit(Direction::store, {0, 1}, {0});
  ASSERT_TRUE(handle.ok());
  EXPECT_FALSE(finish(*handle).ok);
}

TEST_F(EngineTest, QueuedTransfersKeepTheirOwnIds) {
  open(128);
  HostStream slow;
  slow.delay(0.05);
  for (std::int64_t block = 0; block < kBlocks; ++block) fill_block(block, static_cast<int>(block));
  std::vector<TransferHandle> handles;
  for (std::int64_t i = 0; i < 20; ++i) {
    Ids blocks{i, kBlocks - 1 - i}, slots{i};
    handles.push_back(*submit(Direction::store, blocks, slots, slow.handle()));
  }
  for (auto& handle : handles) EXPECT_TRUE(finish(handle).ok);
  for (std::int64_t i = 0; i < 20; ++i) {
    EXPECT_EQ(engine_->slot_address(0, i)[0], static_cast<std::byte>(i));
    EXPECT_EQ(engine_->slot_address(0, i)[kPageBytes], static_cast<std::byte>(kBlocks - 1 - i));
  }
}

TEST_F(EngineTest, ManyCopiesBehindASlowStreamArePacedAndAllArrive) {
  const std::int64_t pages = 200, page_bytes = 8;
  GroupGeometry group;
  for (std::int64_t page = 0; page < pages; ++page)
    group.pages.push_back(
        {reinterpret_cast<std::uintptr_t>(tensor_.data()) + page * 2 * page_bytes, kStride, page_bytes});
  group.num_blocks = kBlocks;
  for (std::size_t i = 0; i < tensor_.size(); ++i) tensor_[i] = static_cast<std::byte>(i * 31 + i / kStride);
  ArenaOptions options;
  options.bytes = kBlocks * group.slot_bytes();
  auto device = make_host_device();
  auto arena = Arena::create(device, options);
  ASSERT_TRUE(arena.ok());
  auto engine = Engine::create(device, std::shared_ptr<Arena>(std::move(*arena)), {group}, 4);
  ASSERT_TRUE(engine.ok());
  HostStream slow;
  slow.delay(0.1);
  Ids all(kBlocks);
  std::iota(all.begin(), all.end(), 0);
  auto stored = (*engine)->submit({0, all, all, 0}, {Direction::store, 0, slow.handle(), nullptr});
  ASSERT_TRUE(stored.ok()) << stored.status().message();
  EXPECT_EQ(stored->lane->before(*stored->transfer, 0, in(10ms)).code(), Code::timeout)
      << "12,800 copies are not queued at once";
  EXPECT_EQ(finish(*stored).bytes, kBlocks * pages * page_bytes);
  for (std::int64_t block = 0; block < kBlocks; ++block)
    for (std::int64_t page = 0; page < pages; ++page)
      ASSERT_EQ(std::memcmp((*engine)->slot_address(0, block) + page * page_bytes,
                            tensor_.data() + block * kStride + page * 2 * page_bytes, page_bytes),
                0);
}

TEST_F(EngineTest, CloseLetsTransfersFinishAndRefusesLaterUse) {
  HostStream slow;
  slow.delay(0.05);
  auto handle = submit(Direction::store, {0, 1}, {0}, slow.handle());
  ASSERT_TRUE(handle.ok());
  EXPECT_TRUE(engine_->close(in(10s)).ok());
  EXPECT_TRUE(handle->transfer->result.ok);
  EXPECT_TRUE(engine_->close(in(10s)).ok());
  EXPECT_EQ(submit(Direction::store, {0, 1}, {0}).status().code(), Code::closed);
}

TEST_F(EngineTest, ClosePastItsDeadlineCancelsWhatDidNotStart) {
  HostStream slow;
  slow.delay(0.3);
  auto running = submit(Direction::store, {0, 1}, {0}, slow.handle());
  ASSERT_TRUE(running.ok());
  EXPECT_EQ(engine_->close(in(20ms)).code(), Code::timeout);
  EXPECT_EQ(engine_->slot_address(0, 0), nullptr) << "the engine has let go of the leaked memory";
  EXPECT_TRUE(finish(*running).ok) << "its memory is still there";
}

TEST_F(EngineTest, AForkedChildMayNotUseItAndExitsCleanly) {
  const pid_t child = fork();
  if (child == 0) {
    const bool refused = submit(Direction::store, {0, 1}, {0}).status().code() == Code::forked;
    engine_.reset();
    _exit(refused ? 0 : 1);
  }
  int status = 0;
  waitpid(child, &status, 0);
  EXPECT_TRUE(WIFEXITED(status) && WEXITSTATUS(status) == 0);
  EXPECT_TRUE(submit(Direction::store, {0, 1}, {0}).ok());
}

TEST_F(EngineTest, ManyThreadsSubmitAndPoll) {
  open(1024);
  std::vector<std::thread> threads;
  std::atomic<int> ok{0};
  for (int t = 0; t < 4; ++t)
    threads.emplace_back([&, t] {
      for (int i = 0; i < 50; ++i) {
        const std::int64_t block = 8 * t + 2 * (i % 4), slot = 8 * t + i % 8;
        auto handle = submit(Direction::store, {block, block + 1}, {slot}, 0, 1 + t * 50 + i);
        if (handle.ok() && finish(*handle).ok) ++ok;
      }
    });
  for (auto& thread : threads) thread.join();
  EXPECT_EQ(ok, 200);
  EXPECT_EQ(engine_->poll()->size(), 200u);
}

}  // namespace
}  // namespace kvo
