// An engine on the host device over one tensor.
#pragma once
#include <gtest/gtest.h>

#include <algorithm>
#include <cstring>
#include <numeric>

#include "base/fault.h"
#include "device/host_device.h"
#include "transfer/engine.h"

namespace kvo {

using namespace std::chrono_literals;
using Ids = std::vector<std::int64_t>;

inline Deadline in(std::chrono::milliseconds time) { return std::chrono::steady_clock::now() + time; }

inline constexpr std::int64_t kBlocks = 64, kBlockBytes = 3000, kStride = 4096;

class EngineTest : public ::testing::Test {
 protected:
  void SetUp() override { open(8); }
  void TearDown() override { fault::disarm_all(); }

  void open(std::int64_t depth, std::shared_ptr<Device> device = make_host_device()) {
    GroupGeometry group;
    group.pages = {{reinterpret_cast<std::uintptr_t>(tensor_.data()), kStride, kBlockBytes}};
    group.num_blocks = kBlocks;
    group.blocks_per_chunk = 2;
    make_engine(std::move(device), group, 40, depth);
  }
  // `pages` pieces of every block, none next to another; blocks hold bytes that are not zero.
  void open_many_pages(std::int64_t pages, std::int64_t page_bytes) {
    GroupGeometry group;
    for (std::int64_t page = 0; page < pages; ++page)
      group.pages.push_back(
          {reinterpret_cast<std::uintptr_t>(tensor_.data()) + page * 2 * page_bytes, kStride, page_bytes});
    group.num_blocks = kBlocks;
    for (std::size_t i = 0; i < tensor_.size(); ++i)
      tensor_[i] = static_cast<std::byte>(1 + (i * 31 + i / kStride) % 255);
    make_engine(make_host_device(), group, kBlocks, 4);
  }
  void make_engine(std::shared_ptr<Device> device, const GroupGeometry& group, std::int64_t slots, std::int64_t depth) {
    EngineOptions options;
    options.queue_depth = depth;
    make_engine(std::move(device), group, slots, options);
  }
  void make_engine(std::shared_ptr<Device> device, const GroupGeometry& group, std::int64_t slots,
                   const EngineOptions& engine_options) {
    engine_.reset();
    ArenaOptions options;
    options.bytes = slots * group.slot_bytes();
    auto arena = Arena::create(device, options);
    ASSERT_TRUE(arena.ok()) << arena.status().message();
    auto engine = Engine::create(device, std::shared_ptr<Arena>(std::move(*arena)), {group}, engine_options);
    ASSERT_TRUE(engine.ok()) << engine.status().message();
    engine_ = std::move(*engine);
  }
  Result<TransferHandle> submit(Direction direction, const Ids& blocks, const Ids& slots, StreamHandle stream = 0,
                                std::int64_t job = 0) {
    return engine_->submit({0, blocks, slots, 0}, {direction, job, stream, nullptr, {}});
  }
  void fill_block(std::int64_t block, int value) { std::memset(tensor_.data() + block * kStride, value, kBlockBytes); }
  bool block_is(std::int64_t block, int value) const {
    const std::byte* page = tensor_.data() + block * kStride;
    return std::all_of(page, page + kBlockBytes, [&](std::byte each) { return each == static_cast<std::byte>(value); });
  }
  static TransferResult finish(TransferHandle& handle) {
    EXPECT_TRUE(handle.lane->wait(*handle.transfer, in(10s)).ok());
    return handle.transfer->result;
  }

  std::vector<std::byte> tensor_ = std::vector<std::byte>(kBlocks * kStride);
  std::unique_ptr<Engine> engine_;
};

}  // namespace kvo
