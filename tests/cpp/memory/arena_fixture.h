// What the arena's tests share: a fake device, options for a small pool, deadlines.
#pragma once
#include <gtest/gtest.h>

#include <chrono>
#include <cstdlib>
#include <memory>

#include "base/fault.h"
#include "memory/arena.h"
#include "memory/fake_device.h"

namespace kvo {

class ArenaTest : public testing::Test {
 protected:
  void TearDown() override { fault::disarm_all(); }

  std::unique_ptr<Arena> make() {
    auto arena = Arena::create(device, options);
    EXPECT_TRUE(arena.ok()) << arena.status().message();
    if (!arena.ok()) std::abort();  // nothing below can go on
    return std::move(*arena);
  }
  static Deadline soon() { return std::chrono::steady_clock::now() + std::chrono::milliseconds(20); }
  static Deadline late() { return std::chrono::steady_clock::now() + std::chrono::seconds(60); }

  // Every page, and the last byte.
  static void write_all(std::byte* base, std::int64_t bytes) {
    for (std::int64_t at = 0; at < bytes; at += kPageBytes) base[at] = std::byte{1};
    base[bytes - 1] = std::byte{1};
  }

  const std::shared_ptr<FakeDevice> device = std::make_shared<FakeDevice>();
  ArenaOptions options;
};

}  // namespace kvo
