#include "base/mapped_region.h"

#include <gtest/gtest.h>

#include <cstring>

#include "base/fault.h"
#include "base/units.h"
#include "memory/smaps.h"

namespace kvo {
namespace {

TEST(MappedRegion, TakesExactlyItsPagesOfAddressSpaceAndNoMemory) {
  for (const std::int64_t asked : {std::int64_t{1}, kPageBytes, kPageBytes + 1, 2 * MiB, 5 * MiB + 123, GiB}) {
    const std::int64_t address_space = process_bytes("VmSize:"), memory = process_bytes("VmRSS:");
    auto region = MappedRegion::reserve(asked, 2 * MiB);
    ASSERT_TRUE(region.ok()) << region.status().message();
    EXPECT_EQ(region->bytes(), round_up(asked, kPageBytes));
    EXPECT_EQ(reinterpret_cast<std::uintptr_t>(region->base()) % (2 * MiB), 0u);
    EXPECT_NEAR(process_bytes("VmSize:") - address_space, region->bytes(), 512 * KiB);  // the test's own heap
    EXPECT_LT(process_bytes("VmRSS:") - memory, 16 * MiB);
    const MappingFacts facts = mapping_facts(region->base(), region->bytes());
    EXPECT_EQ(facts.mapped_bytes, region->bytes());
    EXPECT_EQ(facts.permissions, "rw-p");
    EXPECT_EQ(facts.resident_bytes, 0);
  }
}

TEST(MappedRegion, RefusesWhatDoesNotFit) {
  for (const std::int64_t asked : {INT64_MAX, std::int64_t{1} << 62, (std::int64_t{1} << 47) - kPageBytes}) {
    const auto region = MappedRegion::reserve(asked, 2 * MiB);
    ASSERT_FALSE(region.ok());
    EXPECT_EQ(region.status().code(), Code::memory);
  }
  fault::arm("mmap", 0, 1);
  EXPECT_FALSE(MappedRegion::reserve(MiB, 2 * MiB).ok());
  EXPECT_TRUE(MappedRegion::reserve(MiB, 2 * MiB).ok());
}

TEST(MappedRegion, DiscardGivesTheTailBackAndUnmapAll) {
  auto region = MappedRegion::reserve(8 * MiB, 2 * MiB);
  ASSERT_TRUE(region.ok());
  std::byte* const base = region->base();
  std::memset(base, 7, region->bytes());
  region->discard(6 * MiB);
  EXPECT_EQ(base[6 * MiB - 1], std::byte{7});
  EXPECT_EQ(base[6 * MiB], std::byte{0});
  EXPECT_LE(mapping_facts(base, 8 * MiB).resident_bytes, 6 * MiB + kPageBytes);
  region->unmap();
  region->unmap();
  EXPECT_EQ(region->base(), nullptr);
  EXPECT_EQ(mapping_facts(base, 8 * MiB).mapped_bytes, 0);
}

}  // namespace
}  // namespace kvo
