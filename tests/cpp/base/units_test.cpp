#include "base/units.h"

#include <gtest/gtest.h>

namespace kvo {
namespace {

TEST(HumanBytes, NamesTheLargestUnitThatFits) {
  EXPECT_EQ(human_bytes(0), "0 B");
  EXPECT_EQ(human_bytes(1023), "1023 B");
  EXPECT_EQ(human_bytes(1024), "1.00 KiB");
  EXPECT_EQ(human_bytes(3 * GiB / 2), "1.50 GiB");
  EXPECT_EQ(human_bytes(MiB - 1), "1.00 MiB");
  EXPECT_EQ(human_bytes(INT64_MAX), "8192.00 PiB");
  EXPECT_EQ(human_bytes(-MiB), "-1.00 MiB");
}

TEST(Rounding, UpAndDown) {
  EXPECT_EQ(round_up(1, 4096), 4096);
  EXPECT_EQ(round_up(4096, 4096), 4096);
  EXPECT_EQ(round_down(8191, 4096), 4096);
}

}  // namespace
}  // namespace kvo
