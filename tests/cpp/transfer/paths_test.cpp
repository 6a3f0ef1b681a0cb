// Every path moves the same bytes, in both directions, on the host device: kernels and ring are plain memory there.
#include <random>

#include "transfer/engine_fixture.h"

namespace kvo {
namespace {

constexpr std::int64_t kTestRingBytes = 32 * MiB;

class PathsTest : public EngineTest, public ::testing::WithParamInterface<Path> {
 protected:
  void SetUp() override {}

  // Three pages a block, none aligned, 3 blocks a chunk.
  void open_group(std::int64_t piece_bytes = 32 * KiB) {
    GroupGeometry group;
    const auto base = reinterpret_cast<std::uintptr_t>(tensor_.data());
    group.pages = {{base + 7, kStride, 1001}, {base + 1100, kStride, 256}, {base + 1400, kStride, 1600}};
    group.num_blocks = kBlocks;
    group.blocks_per_chunk = 3;
    EngineOptions options;
    options.queue_depth = 16;
    options.ring_bytes = kTestRingBytes;
    options.staging = {piece_bytes, 8 * KiB, 4};
    make_engine(make_host_device(), group, 21, options);
  }
  Result<TransferHandle> go(Direction direction, const Ids& blocks, const Ids& slots, std::int64_t skip = 0) {
    SubmitOptions options;
    options.direction = direction, options.path = GetParam();
    return engine_->submit({0, blocks, slots, skip}, options);
  }
  void run(Direction direction, const Ids& blocks, const Ids& slots, std::int64_t skip = 0) {
    auto handle = go(direction, blocks, slots, skip);
    ASSERT_TRUE(handle.ok()) << handle.status().message();
    const TransferResult result = finish(*handle);
    ASSERT_TRUE(result.ok) << result.status.message();
    const bool in_part = slots.size() == 1 && skip > 0;  // then the ring has nothing to do
    EXPECT_EQ(result.choice.path, in_part && GetParam() == Path::staged ? Path::kernel : GetParam());
    EXPECT_EQ(result.bytes, static_cast<std::int64_t>(blocks.size() - skip) * (1001 + 256 + 1600));
  }
  void scramble() {
    for (auto& each : tensor_) each = static_cast<std::byte>(random_());
  }
  Ids some(std::int64_t below, std::int64_t count) {
    Ids ids(below);
    std::iota(ids.begin(), ids.end(), 0);
    std::shuffle(ids.begin(), ids.end(), random_);
    ids.resize(count);
    return ids;
  }
  static bool is_page_byte(std::int64_t at) {
    return (at >= 7 && at < 1008) || (at >= 1100 && at < 1356) || (at >= 1400 && at < 3000);
  }

  std::mt19937 random_{7};
};

TEST_P(PathsTest, BlocksComeBackAndNothingElseChanges) {
  open_group();
  for (int round = 0; round < 40; ++round) {
    const auto chunks = static_cast<std::int64_t>(random_() % 21) + 1;
    const Ids blocks = some(kBlocks, 3 * chunks), slots = some(21, chunks);
    scramble();
    const std::vector<std::byte> stored = tensor_;
    run(Direction::store, blocks, slots);
    scramble();
    std::vector<std::byte> wanted = tensor_;
    const auto skip = static_cast<std::int64_t>(random_() % 3);
    for (std::size_t i = skip; i < blocks.size(); ++i)
      for (std::int64_t at = 0; at < kStride; ++at)
        if (is_page_byte(at)) wanted[blocks[i] * kStride + at] = stored[blocks[i] * kStride + at];
    run(Direction::load, blocks, slots, skip);
    ASSERT_EQ(tensor_, wanted) << "round " << round;
  }
}

TEST_P(PathsTest, AStoreThatSkipsBlocksLeavesTheirPartOfTheSlot) {
  open_group();
  scramble();
  const std::vector<std::byte> first = tensor_;
  run(Direction::store, {0, 1, 2, 3, 4, 5}, {4, 9});
  scramble();
  const std::vector<std::byte> second = tensor_;
  run(Direction::store, {0, 1, 2, 3, 4, 5}, {4, 9}, 2);
  scramble();
  run(Direction::load, {10, 11, 12, 13, 14, 15}, {4, 9});
  for (std::int64_t i = 0; i < 6; ++i) {
    for (std::int64_t at = 0; at < kStride; ++at) {
      if (!is_page_byte(at)) continue;
      ASSERT_EQ(tensor_[(10 + i) * kStride + at], (i < 2 ? first : second)[i * kStride + at]);
    }
  }
}

TEST_P(PathsTest, TransfersInARowKeepTheirOrderAndTheirData) {
  open_group(16 * KiB);
  for (int round = 0; round < 10; ++round) {
    scramble();
    const std::vector<std::byte> stored = tensor_;
    std::vector<TransferHandle> handles;
    for (std::int64_t slot = 0; slot < 15; ++slot) {  // the same slot is written twice: the later one counts
      handles.push_back(*go(Direction::store, {slot, slot + 20, slot + 40}, {slot}));
      if (slot % 4 == 0) handles.push_back(*go(Direction::store, {slot + 1, slot + 21, slot + 41}, {slot}));
      if (handles.size() >= 12) finish(handles.back()), handles.clear();
    }
    for (auto& handle : handles) ASSERT_TRUE(finish(handle).ok);
    scramble();
    run(Direction::load, {0, 1, 2, 3, 4, 5}, {4, 5});
    for (std::int64_t at = 0; at < kStride; ++at)
      if (is_page_byte(at)) {
        ASSERT_EQ(tensor_[at], stored[5 * kStride + at]);
        ASSERT_EQ(tensor_[3 * kStride + at], stored[5 * kStride + at]);
      }
  }
}

TEST_P(PathsTest, TheNthStepThatFailsFailsTheTransferAndTheNextOneIsRight) {
  open_group(16 * KiB);
  for (int skip = 0; skip < 4; ++skip) {
    fault::arm("copy", skip, 1);
    auto handle = go(Direction::store, some(kBlocks, 63), some(21, 21));
    ASSERT_TRUE(handle.ok());
    const TransferResult result = finish(*handle);
    const bool fired = !result.ok;
    EXPECT_EQ(result.bytes == 0, fired);
    EXPECT_TRUE(fired || skip > 0);
    fault::disarm_all();
    scramble();
    const std::vector<std::byte> stored = tensor_;
    run(Direction::store, {1, 2, 3}, {0});
    scramble();
    run(Direction::load, {1, 2, 3}, {0});
    EXPECT_EQ(tensor_[1 * kStride + 1500], stored[1 * kStride + 1500]);
  }
}

TEST_P(PathsTest, PathsMixedInOneLaneKeepTheOrder) {
  open_group(16 * KiB);
  fault::arm("copy_delay", 3, 2);
  scramble();
  const std::vector<std::byte> stored = tensor_;
  const auto load = [&](Path path, const Ids& blocks, const Ids& slots) {
    SubmitOptions options;
    options.direction = Direction::load, options.path = path;
    return *engine_->submit({0, blocks, slots, 0}, options);
  };
  for (std::int64_t i = 0; i < 3; ++i) run(Direction::store, {10 * i, 10 * i + 1, 10 * i + 2}, {i});
  scramble();
  std::vector<TransferHandle> handles;
  for (const Path other : kPaths) {
    handles.push_back(load(GetParam(), {0, 1, 2}, {0}));
    handles.push_back(load(other, {0, 1, 2}, {1}));  // into the same blocks: this one counts
    finish(handles.back());
    EXPECT_EQ(tensor_[500], stored[10 * kStride + 500]);
  }
}

TEST_P(PathsTest, CalibrationFindsARowForEachPathAndLeavesTheTensorAlone) {
  open_group();
  const std::vector<std::byte> before = tensor_;
  EXPECT_TRUE(engine_->calibrate()->empty());  // the arena holds 189 KB
  EXPECT_EQ(tensor_, before);
}

TEST_P(PathsTest, RingIsGoneAfterCloseAndHandlesStayUsable) {
  open_group();
  auto handle = go(Direction::store, {1, 2, 3}, {0});
  EXPECT_TRUE(engine_->close(in(5s)).ok());
  engine_.reset();
  EXPECT_TRUE(handle->lane->done(*handle->transfer));
}

std::string test_name(const ::testing::TestParamInfo<Path>& info) { return std::string(name_of(info.param, true)); }
INSTANTIATE_TEST_SUITE_P(Each, PathsTest, ::testing::ValuesIn(kPaths), test_name);

TEST_F(EngineTest, CalibrationMeasuresEveryPathInAnArenaThatIsLargeEnough) {
  GroupGeometry group;
  std::vector<std::byte> tensor(MiB);
  group.pages = {{reinterpret_cast<std::uintptr_t>(tensor.data()), 4096, 4096}};
  group.num_blocks = 256, group.blocks_per_chunk = 128;
  EngineOptions options;
  options.ring_bytes = kTestRingBytes;
  make_engine(make_host_device(), group, 200, options);  // 100 MiB
  auto rows = engine_->calibrate();
  ASSERT_TRUE(rows.ok()) << rows.status().message();
  EXPECT_EQ(rows->size(), 2u * (3 + 3 + 2 + 2 + 2) * 3) << "directions, numbers of pages of each size, paths";
  EXPECT_TRUE(std::all_of(tensor.begin(), tensor.end(), [](std::byte each) { return each == std::byte{0}; }));
  engine_->set_path_table(*rows);
  EXPECT_GT(*engine_->contiguous_bytes_per_s(Direction::load), 0);
}

TEST_F(EngineTest, OneChunkAloneIsNotSentThroughTheRingUnlessAskedFor) {
  GroupGeometry group;
  group.pages = {{reinterpret_cast<std::uintptr_t>(tensor_.data()), 64, 64}};
  group.num_blocks = 8, group.blocks_per_chunk = 2;
  EngineOptions options;
  options.ring_bytes = kTestRingBytes;
  make_engine(make_host_device(), group, 4, options);
  engine_->set_path_table({{Direction::store, 64, 8, Path::staged, 1e-6}, {Direction::store, 64, 8, Path::dma, 1e-3}});
  const auto path_of = [&](const Ids& blocks, const Ids& slots, std::optional<Path> asked) {
    SubmitOptions how;
    how.direction = Direction::store, how.path = asked;
    return finish(*engine_->submit({0, blocks, slots, 0}, how)).choice.path;
  };
  EXPECT_EQ(path_of({0, 1, 2, 3}, {0, 1}, std::nullopt), Path::staged);
  EXPECT_EQ(path_of({0, 1}, {0}, std::nullopt), Path::dma);
  EXPECT_EQ(path_of({0, 1}, {0}, Path::staged), Path::staged);
}

TEST_F(EngineTest, ARingTooSmallOrNoneLeavesThePathOut) {
  EXPECT_EQ(engine_->ring_bytes(), 0);
  SubmitOptions options;
  options.path = Path::staged;
  const Ids blocks{0, 1}, slots{0};
  const auto refused = engine_->submit({0, blocks, slots, 0}, options);
  EXPECT_EQ(refused.status().code(), Code::invalid);
  EXPECT_NE(refused.status().message().find("use auto, host, kernel"), std::string::npos) << refused.status().message();
}

}  // namespace
}  // namespace kvo
