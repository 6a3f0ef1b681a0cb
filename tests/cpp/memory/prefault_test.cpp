#include "memory/prefault.h"

#include <gtest/gtest.h>

#include "base/fault.h"
#include "base/mapped_region.h"
#include "memory/smaps.h"

namespace kvo {
namespace {

class Prefault : public testing::Test {
 protected:
  void TearDown() override { fault::disarm_all(); }
  std::int64_t resident() const { return mapping_facts(region.base(), region.bytes()).resident_bytes; }

  MappedRegion region = std::move(*MappedRegion::reserve(4 * kPrefaultUnitBytes, 2 * MiB));
  PrefaultOptions options;
  std::atomic<bool> stop{false}, gave_up{false};
};

// A limit on threads may leave none: the waiting thread does the work, as far as it is asked.
TEST_F(Prefault, WithoutThreadsWaitDoesTheWork) {
  options.threads = 0;
  Prefaulter prefaulter(region.base(), region.bytes(), options, stop, gave_up);
  EXPECT_TRUE(prefaulter.wait(kPrefaultUnitBytes + 1).ok());
  EXPECT_EQ(resident(), 2 * kPrefaultUnitBytes);
  EXPECT_TRUE(prefaulter.wait(region.bytes()).ok());
  EXPECT_EQ(resident(), region.bytes());
}

TEST_F(Prefault, WithoutThreadsAFailureAndAStopEndTheWait) {
  options.threads = 0;
  fault::arm("populate", 1, 1);
  Prefaulter failing(region.base(), region.bytes(), options, stop, gave_up);
  EXPECT_EQ(failing.wait(region.bytes()).code(), Code::memory);
  EXPECT_TRUE(failing.wait(kPrefaultUnitBytes).ok());
  Prefaulter stopped(region.base(), region.bytes(), options, stop, gave_up);
  stop = true;
  EXPECT_EQ(stopped.wait(region.bytes()).code(), Code::closed);
}

TEST_F(Prefault, AStopEndsTheWaitOfThreads) {
  options.threads = 2;
  stop = true;
  Prefaulter prefaulter(region.base(), region.bytes(), options, stop, gave_up);
  EXPECT_EQ(prefaulter.wait(region.bytes()).code(), Code::closed);
  EXPECT_EQ(resident(), 0);
}

}  // namespace
}  // namespace kvo
