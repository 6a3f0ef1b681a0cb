// The engine on the host device: order, bounds, pace. Runs under ASan/UBSan and TSan.
#include "transfer/engine_fixture.h"

namespace kvo {
namespace {

TEST_F(EngineTest, StoreThenLoadBringsTheBytesBack) {
  fill_block(5, 1), fill_block(9, 2);
  auto stored = submit(Direction::store, {5, 9}, {3});
  ASSERT_TRUE(stored.ok()) << stored.status().message();
  EXPECT_EQ(finish(*stored).bytes, 2 * kBlockBytes);
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
  EXPECT_EQ((*engine_->slot_address(0, 0))[0], std::byte{7});
  EXPECT_EQ((*engine_->slot_address(0, 0))[2 * kBlockBytes - 1], std::byte{7});
}

TEST_F(EngineTest, LaterWorkOnAStreamWaitsAfterBefore) {
  std::vector<std::byte> seen(kBlockBytes);
  std::memset((*engine_->slot_address(0, 1)), 9, 2 * kBlockBytes);
  HostStream stream, slow;
  slow.delay(0.05);
  auto loaded = submit(Direction::load, {2, 3}, {1}, slow.handle());
  ASSERT_TRUE(loaded.ok());
  ASSERT_TRUE(loaded->lane->before(*loaded->transfer, stream.handle(), in(10s)).ok());
  const CopySpan read{seen.data(), tensor_.data() + 2 * kStride, kBlockBytes};
  ASSERT_TRUE(stream.copy(std::span(&read, 1), Direction::store).ok());
  EXPECT_TRUE(stream.synchronize().ok());
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
  EXPECT_EQ(engine_->stats(Direction::store)->unfinished, 0);
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
  EXPECT_EQ((*engine_->slot_address(0, 1))[0], std::byte{0}) << "nothing was copied";
  EXPECT_EQ(engine_->poll()->size(), 1u) << "a cancelled job is reported";
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
    EXPECT_EQ((*engine_->slot_address(0, i))[0], static_cast<std::byte>(i));
    EXPECT_EQ((*engine_->slot_address(0, i))[kBlockBytes], static_cast<std::byte>(kBlocks - 1 - i));
  }
}

TEST_F(EngineTest, ManyCopiesBehindASlowStreamArePacedAndAllArrive) {
  const std::int64_t pages = 400, page_bytes = 4;  // 25,600 copies
  open_many_pages(pages, page_bytes);
  HostStream slow, other;
  slow.delay(0.1);
  Ids all(kBlocks);
  std::iota(all.begin(), all.end(), 0);
  auto stored = submit(Direction::store, all, all, slow.handle());
  ASSERT_TRUE(stored.ok()) << stored.status().message();
  EXPECT_EQ(stored->lane->before(*stored->transfer, other.handle(), in(10ms)).code(), Code::timeout)
      << "25,600 copies are not queued at once";
  EXPECT_EQ(finish(*stored).bytes, kBlocks * pages * page_bytes);
  for (std::int64_t block = 0; block < kBlocks; ++block)
    for (std::int64_t page = 0; page < pages; ++page)
      ASSERT_EQ(std::memcmp(*engine_->slot_address(0, block) + page * page_bytes,
                            tensor_.data() + block * kStride + page * 2 * page_bytes, page_bytes),
                0);
}

TEST_F(EngineTest, ACallerThatWaitsForAFewThousandCopiesToBeEnqueuedDoesNotWaitForTheDevice) {
  open_many_pages(400, 4);
  HostStream slow, other;
  slow.delay(0.5);
  Ids some(20);
  std::iota(some.begin(), some.end(), 0);
  auto stored = submit(Direction::store, some, some, slow.handle());  // 8,000 copies, more than the usual window
  ASSERT_TRUE(stored.ok());
  EXPECT_TRUE(stored->lane->before(*stored->transfer, other.handle(), in(10s)).ok());
  EXPECT_FALSE(stored->lane->done(*stored->transfer)) << "the stream was still busy";
}

TEST_F(EngineTest, AnAnnouncedTransferMayComeOrNot) {
  auto first = submit(Direction::store, {0, 1}, {0});
  ASSERT_TRUE(first.ok() && finish(*first).ok);
  const Ids too_many(2048);
  std::atomic<bool> enough{false};
  std::thread announcer([&] {
    while (!enough) first->lane->announce();
  });
  for (int i = 1; i <= 50; ++i) {
    EXPECT_FALSE(submit(Direction::store, too_many, {0}).ok());
    fill_block(2, i);
    auto handle = submit(Direction::store, {2, 3}, {1});
    ASSERT_TRUE(handle.ok());
    EXPECT_TRUE(finish(*handle).ok);
    EXPECT_EQ((*engine_->slot_address(0, 1))[0], static_cast<std::byte>(i));
  }
  enough = true;
  announcer.join();
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
