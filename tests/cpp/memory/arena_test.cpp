// The arena on a device that records pins: sizes, growth, failures.
#include "memory/arena.h"

#include <gtest/gtest.h>

#include <chrono>
#include <filesystem>
#include <fstream>

#include "base/fault.h"
#include "memory/arena_fixture.h"
#include "memory/smaps.h"

namespace kvo {
namespace {

// ---- sizes ----

TEST_F(ArenaTest, TakesExactlyTheBytesAsked) {
  const std::int64_t sizes[] = {
      1, 4096, 4097, 2 * MiB + 1, 5 * MiB, kPieceBytes - 4096, kPieceBytes, 3 * kPieceBytes + 12288};
  for (const std::int64_t bytes : sizes) {
    for (const bool huge_pages : {true, false}) {
      options.bytes = bytes;
      options.huge_pages = huge_pages;
      auto arena = make();
      const std::int64_t pages = round_up(bytes, kPageBytes);
      EXPECT_EQ(arena->bytes(), bytes);
      EXPECT_EQ(arena->ready_bytes(), bytes);
      const MappingFacts facts = mapping_facts(arena->base(), pages);
      EXPECT_EQ(facts.mapped_bytes, pages);
      EXPECT_EQ(facts.resident_bytes, pages);
      write_all(arena->base(), bytes);
    }
  }
}

TEST_F(ArenaTest, ProcessGrowsByThePoolAndShrinksAgain) {
  options.bytes = 3 * kPieceBytes + 5 * MiB;
  const std::int64_t before = process_bytes("VmRSS:");
  auto arena = make();
  EXPECT_NEAR(process_bytes("VmRSS:") - before, options.bytes, 12 * MiB);
  arena->close();
  EXPECT_NEAR(process_bytes("VmRSS:") - before, 0, 12 * MiB);
}

TEST_F(ArenaTest, PiecesCoverThePoolInOrder) {
  options.bytes = 3 * kPieceBytes + 4097;
  auto arena = make();
  std::vector<std::byte*> expected;
  for (std::int64_t at = 0; at < options.bytes; at += kPieceBytes) expected.push_back(arena->base() + at);
  EXPECT_EQ(device->order(), expected);
  const auto pins = device->pins();
  EXPECT_EQ(pins.at(arena->base()), kPieceBytes);
  EXPECT_EQ(pins.at(arena->base() + 3 * kPieceBytes), 8192);
}

TEST_F(ArenaTest, MappingIsKeptOutOfChildrenAndAdvisedForHugePages) {
  options.bytes = 4 * MiB;
  auto arena = make();
  const std::string flags = mapping_facts(arena->base(), options.bytes).flags;
  EXPECT_NE(flags.find(" dc "), std::string::npos) << flags;
  EXPECT_EQ(flags.find(" hg ") != std::string::npos, arena->report().huge_pages == "advised") << flags;
  options.huge_pages = false;
  auto small = make();
  EXPECT_EQ(small->report().huge_pages, "off");
  EXPECT_EQ(mapping_facts(small->base(), options.bytes).flags.find(" hg "), std::string::npos);
}

TEST_F(ArenaTest, SlowHugePagesAreGivenUp) {
  options.bytes = 2 * kPieceBytes;
  options.huge_page_stall_seconds = 0;
  auto arena = make();
  if (arena->report().huge_pages.rfind("refused", 0) == 0) GTEST_SKIP() << arena->report().huge_pages;
  EXPECT_EQ(arena->report().huge_pages.rfind("given up", 0), 0u);
  EXPECT_NE(mapping_facts(arena->base() + options.bytes - MiB, MiB).flags.find(" nh "), std::string::npos);
  EXPECT_EQ(arena->ready_bytes(), options.bytes);
}

TEST_F(ArenaTest, MoreThreadsThanUnitsAndOneThread) {
  for (const int threads : {1, 3, 1000}) {
    options.bytes = kPieceBytes + MiB;
    options.threads = threads;
    auto arena = make();
    EXPECT_EQ(mapping_facts(arena->base(), arena->bytes()).resident_bytes, options.bytes);
  }
}

TEST_F(ArenaTest, ANodeThatRefusesIsAWarning) {
  device->node = 999;
  options.bytes = MiB;
  auto arena = make();
  EXPECT_EQ(arena->report().numa_node, -1);
  EXPECT_NE(arena->report().warning.find("node 999"), std::string::npos) << arena->report().warning;
  EXPECT_EQ(arena->ready_bytes(), MiB);
}

TEST_F(ArenaTest, BlockingModeReturnsWithAllReady) {
  options.bytes = kFirstReadyBytes + kPieceBytes + 4096;
  options.background = false;
  auto arena = make();
  EXPECT_EQ(arena->ready_bytes(), options.bytes);
  const ArenaReport report = arena->report();
  EXPECT_EQ(report.ready_bytes, options.bytes);
  EXPECT_TRUE(report.pinned);
  EXPECT_EQ(report.failure, "");
  EXPECT_GT(report.first_ready_seconds, 0);
  EXPECT_GE(report.seconds, report.first_ready_seconds);
}

// ---- growth ----

TEST_F(ArenaTest, UsableFromTheFirstGiBWhileTheRestGrows) {
  options.bytes = kFirstReadyBytes + 3 * kPieceBytes + 100;
  device->close_gate(kFirstReadyBytes / kPieceBytes);
  auto arena = make();
  EXPECT_EQ(arena->ready_bytes(), kFirstReadyBytes);
  EXPECT_TRUE(arena->wait_ready(kFirstReadyBytes, soon()).ok());
  EXPECT_EQ(arena->wait_ready(kFirstReadyBytes + 1, soon()).code(), Code::timeout);
  write_all(arena->base(), kFirstReadyBytes);
  for (int piece = 1; piece <= 3; ++piece) {
    device->wait_for_pin_at_gate();
    EXPECT_EQ(arena->ready_bytes(), kFirstReadyBytes + (piece - 1) * kPieceBytes);
    device->let_through(1);
    EXPECT_TRUE(arena->wait_ready(kFirstReadyBytes + piece * kPieceBytes, late()).ok());
  }
  device->let_through(1);
  EXPECT_TRUE(arena->wait_ready(options.bytes, late()).ok());
  EXPECT_EQ(arena->ready_bytes(), options.bytes);
}

TEST_F(ArenaTest, HeldAfterTheFirstGiBUntilToldToGoOn) {
  options.bytes = kFirstReadyBytes + 2 * kPieceBytes;
  options.held = true;
  auto arena = make();
  EXPECT_EQ(arena->wait_ready(kFirstReadyBytes + 1, soon()).code(), Code::timeout);
  EXPECT_EQ(arena->ready_bytes(), kFirstReadyBytes);
  arena->fill_rest();
  EXPECT_TRUE(arena->wait_ready(options.bytes, late()).ok());

  arena->close();

  auto never_told = make();
  never_told->close();
  EXPECT_EQ(device->pins().size(), 0u);
}

TEST_F(ArenaTest, ReadyBytesMayBeWrittenWhileOthersArePinned) {
  options.bytes = kFirstReadyBytes + 4 * kPieceBytes;
  auto arena = make();
  for (std::int64_t seen = 0; seen < options.bytes;) {
    const std::int64_t ready = arena->ready_bytes();
    ASSERT_GE(ready, seen);
    for (; seen < ready; seen += MiB) arena->base()[seen] = std::byte{1};
    ASSERT_TRUE(arena->wait_ready(std::min(seen + 1, options.bytes), late()).ok());
  }
}

TEST_F(ArenaTest, WaitingForBytesItWillNeverHaveIsRefused) {
  options.bytes = MiB;
  auto arena = make();
  for (const std::int64_t bytes : {std::int64_t{-1}, MiB + 1}) {
    EXPECT_EQ(arena->wait_ready(bytes, soon()).code(), Code::invalid);
  }
  EXPECT_TRUE(arena->wait_ready(0, soon()).ok());
}

// ---- failures ----

TEST_F(ArenaTest, ALatePinFailureFreezesTheCapacity) {
  options.bytes = kFirstReadyBytes + 4 * kPieceBytes;
  options.background = false;
  device->fail_after = kFirstReadyBytes / kPieceBytes + 1;
  auto arena = make();
  const std::int64_t ready = kFirstReadyBytes + kPieceBytes;
  EXPECT_EQ(arena->ready_bytes(), ready);
  EXPECT_EQ(arena->bytes(), options.bytes);
  EXPECT_TRUE(arena->wait_ready(ready, soon()).ok());
  EXPECT_EQ(arena->wait_ready(ready + 1, late()).code(), Code::device);
  for (const std::string& text : {arena->report().warning, arena->report().failure}) {
    EXPECT_NE(text.find("cudaErrorMemoryAllocation"), std::string::npos) << text;
    EXPECT_NE(text.find(std::to_string(ready)), std::string::npos) << text;
  }
  write_all(arena->base(), ready);
  // What was prefaulted and cannot be used was given back.
  EXPECT_EQ(mapping_facts(arena->base(), options.bytes).resident_bytes, ready);
  arena->close();
  EXPECT_TRUE(device->pins().empty());
}

TEST_F(ArenaTest, AFailureOfAnyPieceKeepsThoseBeforeIt) {
  options.bytes = 6 * kPieceBytes;
  for (const char* point : {"pin", "populate"}) {
    const int passes_per_piece = point == std::string("pin") ? 1 : kPieceBytes / (16 * MiB);
    options.threads = 1;  // so that the nth pass is the nth unit
    for (int piece = 1; piece < 6; piece += 2) {
      fault::arm(point, piece * passes_per_piece, 1);
      auto arena = make();
      EXPECT_EQ(arena->ready_bytes(), piece * kPieceBytes) << point;
      EXPECT_NE(arena->report().failure, "");
      EXPECT_EQ(device->pins().size(), static_cast<std::size_t>(piece));
    }
  }
}

TEST_F(ArenaTest, PopulateFailingUnderManyThreadsKeepsAPrefix) {
  options.bytes = 8 * kPieceBytes;
  for (long skip = 4; skip < 32; skip += 5) {
    fault::arm("populate", skip, 1);
    auto arena = make();
    EXPECT_LT(arena->ready_bytes(), options.bytes);
    EXPECT_GT(arena->ready_bytes(), 0);
    EXPECT_EQ(mapping_facts(arena->base(), options.bytes).resident_bytes, arena->ready_bytes());
    EXPECT_EQ(arena->wait_ready(options.bytes, late()).code(), Code::memory);
  }
}

TEST_F(ArenaTest, AFailureBeforeAnythingIsReadyIsAStatusThatLeavesNothing) {
  options.bytes = 2 * kPieceBytes;
  const std::int64_t before = process_bytes("VmRSS:");
  const std::pair<const char*, Code> points[] = {
      {"pin", Code::device}, {"populate", Code::memory}, {"mmap", Code::memory}};
  for (const auto& [point, code] : points) {
    options.threads = 1;
    fault::arm(point, 0, 1);
    auto arena = Arena::create(device, options);
    ASSERT_FALSE(arena.ok()) << point;
    EXPECT_EQ(arena.status().code(), code);
    for (const char* part : {"134217728", "`host`"}) {
      EXPECT_NE(arena.status().message().find(part), std::string::npos) << arena.status().message();
    }
    EXPECT_TRUE(device->pins().empty());
  }
  EXPECT_NEAR(process_bytes("VmRSS:") - before, 0, 12 * MiB);
}

TEST_F(ArenaTest, AnExceptionOnTheThreadIsAFailureNotACrash) {
  options.bytes = MiB;
  device->throws = true;
  auto arena = Arena::create(device, options);
  ASSERT_FALSE(arena.ok());
  EXPECT_EQ(arena.status().code(), Code::memory);
}

TEST_F(ArenaTest, NonsenseIsRefused) {
  for (const std::int64_t bytes : {std::int64_t{0}, std::int64_t{-5}}) {
    options.bytes = bytes;
    EXPECT_EQ(Arena::create(device, options).status().code(), Code::invalid);
  }
  options.bytes = MiB;
  EXPECT_EQ(Arena::create(nullptr, options).status().code(), Code::invalid);
  options.threads = 0;
  EXPECT_EQ(Arena::create(device, options).status().code(), Code::invalid);
  options.threads = 1;
  options.bytes = INT64_MAX;
  EXPECT_EQ(Arena::create(device, options).status().code(), Code::memory);
}

TEST_F(ArenaTest, ACgroupLimitIsMetBeforeAnythingIsTaken) {
  char name[] = "/tmp/kvo_arena_XXXXXX";
  const std::filesystem::path root = mkdtemp(name);
  std::ofstream(root / "memory.max") << kPieceBytes;
  options.cgroup_root = root.string();
  options.bytes = kPieceBytes + 1;
  fault::arm("mmap", 0, 1);
  auto arena = Arena::create(device, options);
  EXPECT_EQ(arena.status().code(), Code::memory);
  EXPECT_NE(arena.status().message().find("memory.max"), std::string::npos) << arena.status().message();
  EXPECT_EQ(fault::armed_count, 1) << "it was mapped";
  fault::disarm_all();
  options.bytes = kPieceBytes;
  EXPECT_EQ(make()->ready_bytes(), kPieceBytes);
  std::filesystem::remove_all(root);
}

}  // namespace
}  // namespace kvo
