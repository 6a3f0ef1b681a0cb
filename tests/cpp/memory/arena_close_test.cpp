// Ends of an arena: close, leak, fork, from any thread and at any moment.
#include <gtest/gtest.h>
#include <sys/mman.h>
#include <sys/wait.h>
#include <unistd.h>

#include <atomic>
#include <csignal>
#include <cstring>
#include <functional>
#include <thread>
#include <vector>

#include "memory/arena.h"
#include "memory/arena_fixture.h"
#include "memory/smaps.h"

namespace kvo {
namespace {

constexpr std::int64_t kGrowingBytes = kFirstReadyBytes + 4 * kPieceBytes;
constexpr long kFirstPieces = kFirstReadyBytes / kPieceBytes;

TEST_F(ArenaTest, CloseUnpinsAndUnmapsAndMayComeTwice) {
  options.bytes = 2 * kPieceBytes;
  auto arena = make();
  std::byte* const base = arena->base();
  EXPECT_EQ(device->pins().size(), 2u);
  for (int time = 0; time < 2; ++time) {
    arena->close();
    EXPECT_TRUE(device->pins().empty());
    EXPECT_EQ(mapping_facts(base, options.bytes).mapped_bytes, 0);
    EXPECT_EQ(arena->base(), nullptr);
    EXPECT_EQ(arena->ready_bytes(), 0);
    EXPECT_EQ(arena->wait_ready(1, soon()).code(), Code::closed);
    EXPECT_EQ(arena->report().ready_bytes, 0);
    EXPECT_EQ(arena->report().failure, "");
  }
  arena->leak();
}

TEST_F(ArenaTest, CloseWaitsForThePieceBeingPinnedAndBeginsNoOther) {
  options.bytes = kGrowingBytes;
  device->close_gate(kFirstPieces);
  auto arena = make();
  std::byte* const base = arena->base();
  device->wait_for_pin_at_gate();
  // All of it is prefaulted: nothing but the close itself keeps further pieces from being pinned.
  while (mapping_facts(base, kGrowingBytes).resident_bytes < kGrowingBytes) {
    std::this_thread::sleep_for(std::chrono::milliseconds(5));
  }
  std::atomic<bool> closed{false};
  std::thread closer([&] {
    arena->close();
    closed = true;
  });
  // The waiter is told at once, or when the piece is done; never left waiting.
  std::thread waiter([&] { EXPECT_EQ(arena->wait_ready(kGrowingBytes, late()).code(), Code::closed); });
  std::this_thread::sleep_for(std::chrono::milliseconds(50));
  EXPECT_FALSE(closed);
  EXPECT_EQ(mapping_facts(base, kGrowingBytes).mapped_bytes, kGrowingBytes) << "unmapped under a running registration";
  device->let_through(100);
  closer.join();
  waiter.join();
  EXPECT_TRUE(device->pins().empty());
  EXPECT_EQ(device->order().size(), static_cast<std::size_t>(kFirstPieces) + 1);
  EXPECT_EQ(mapping_facts(base, kGrowingBytes).mapped_bytes, 0);
}

TEST_F(ArenaTest, CloseAtAnyMomentLeavesNoPin) {
  options.bytes = kGrowingBytes;
  for (int delay_ms = 0; delay_ms < 40; delay_ms += 8) {
    auto arena = make();
    std::byte* const base = arena->base();
    std::this_thread::sleep_for(std::chrono::milliseconds(delay_ms));
    arena.reset();
    EXPECT_TRUE(device->pins().empty());
    EXPECT_EQ(mapping_facts(base, kGrowingBytes).mapped_bytes, 0);
  }
}

TEST_F(ArenaTest, CloseFromSeveralThreadsReturnsWhenItIsClosed) {
  options.bytes = kGrowingBytes;
  auto arena = make();
  std::vector<std::thread> threads;
  for (int i = 0; i < 4; ++i) {
    threads.emplace_back([&] {
      arena->close();
      EXPECT_TRUE(device->pins().empty());
      EXPECT_EQ(arena->report().ready_bytes, 0);
    });
  }
  for (std::thread& thread : threads) thread.join();
}

TEST_F(ArenaTest, LeakKeepsMemoryAndPins) {
  options.bytes = kPieceBytes;
  auto arena = make();
  std::byte* const base = arena->base();
  arena->leak();
  arena->close();
  arena.reset();
  EXPECT_EQ(device->pins().size(), 1u);
  write_all(base, kPieceBytes);
  munmap(base, kPieceBytes);
}

TEST_F(ArenaTest, MemoryThatCannotBeUnpinnedStaysMapped) {
  options.bytes = kPieceBytes;
  auto arena = make();
  std::byte* const base = arena->base();
  device->unpin_fails = true;
  arena->close();
  write_all(base, kPieceBytes);
  EXPECT_NE(arena->report().warning.find("unpin failed"), std::string::npos);
  munmap(base, kPieceBytes);
}

// Runs `body` in a forked child; true if it returned 0 within 20 s.
bool in_child(const std::function<int()>& body) {
  const pid_t child = fork();
  if (child == 0) {
    alarm(20);
    _exit(body());
  }
  int status = 0;
  waitpid(child, &status, 0);
  return WIFEXITED(status) && WEXITSTATUS(status) == 0;
}

TEST_F(ArenaTest, AForkedChildNeitherUsesNorHarmsIt) {
  options.bytes = kGrowingBytes;
  device->close_gate(kFirstPieces);
  auto arena = make();
  device->wait_for_pin_at_gate();
  // A thread inside wait_ready() and one inside pin(): neither exists in the child, what they hold stays held there.
  std::thread waiter([&] { EXPECT_TRUE(arena->wait_ready(kGrowingBytes, late()).ok()); });
  std::this_thread::sleep_for(std::chrono::milliseconds(20));
  EXPECT_TRUE(in_child([&] {
    std::byte* const base = arena->base();
    // The child's own memory at the same address must survive the arena's end.
    void* own =
        mmap(base, kPageBytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_FIXED_NOREPLACE, -1, 0);
    if (own != base) return 1;  // also: the pool is not mapped here
    std::memset(own, 42, kPageBytes);
    if (arena->wait_ready(1, late()).code() != Code::forked) return 2;
    if (arena->report().warning.find("fork") == std::string::npos) return 3;
    arena->close();
    arena->leak();
    if (arena->ready_bytes() != 0) return 4;
    arena.reset();
    return static_cast<unsigned char*>(own)[kPageBytes - 1] == 42 ? 0 : 5;
  }));
  device->let_through(100);
  waiter.join();
  EXPECT_EQ(arena->ready_bytes(), kGrowingBytes);
  write_all(arena->base(), kGrowingBytes);
}

TEST_F(ArenaTest, AKilledProcessLeavesNothing) {
  options.bytes = kPieceBytes;
  EXPECT_FALSE(in_child([&] {
    auto arena = make();
    raise(SIGKILL);
    return 0;
  }));
  EXPECT_EQ(make()->ready_bytes(), kPieceBytes);
}

}  // namespace
}  // namespace kvo
