#include "base/crc32c.h"

#include <gtest/gtest.h>

#include <random>
#include <string_view>
#include <vector>

namespace kvo {
namespace {

std::vector<unsigned char> random_bytes(std::size_t count) {
  std::mt19937 random(1);
  std::vector<unsigned char> bytes(count);
  for (unsigned char& byte : bytes) byte = static_cast<unsigned char>(random());
  return bytes;
}

// Bit by bit, from the definition.
std::uint32_t by_definition(const unsigned char* data, std::size_t bytes) {
  std::uint32_t crc = ~0u;
  for (std::size_t i = 0; i < bytes; ++i) {
    crc ^= data[i];
    for (int bit = 0; bit < 8; ++bit) crc = (crc >> 1) ^ (crc & 1 ? 0x82f63b78u : 0);
  }
  return ~crc;
}

// RFC 3720, appendix B.4, and the usual check value.
TEST(Crc32c, HasThePublishedValues) {
  std::vector<unsigned char> counting(32);
  for (int i = 0; i < 32; ++i) counting[i] = static_cast<unsigned char>(i);
  for (const auto checksum : {crc32c, crc32c_by_table}) {
    constexpr std::string_view digits = "123456789";
    EXPECT_EQ(checksum(digits.data(), digits.size(), 0), 0xe3069283u);
    EXPECT_EQ(checksum(std::vector<unsigned char>(32, 0).data(), 32, 0), 0x8a9136aau);
    EXPECT_EQ(checksum(std::vector<unsigned char>(32, 0xff).data(), 32, 0), 0x62a8ab43u);
    EXPECT_EQ(checksum(counting.data(), 32, 0), 0x46dd794eu);
    EXPECT_EQ(checksum(nullptr, 0, 0), 0u);
  }
}

TEST(Crc32c, AllWaysAgreeAtAnyLengthAndAlignment) {
  const std::vector<unsigned char> bytes = random_bytes(20000);
  for (const std::size_t length : {1, 7, 8, 9, 63, 511, 2048, 6143, 6144, 6145, 12288, 12291, 19990}) {
    for (std::size_t start = 0; start < 9; ++start) {
      const std::uint32_t expected = by_definition(bytes.data() + start, length);
      EXPECT_EQ(crc32c(bytes.data() + start, length), expected) << length << " from " << start;
      EXPECT_EQ(crc32c_by_table(bytes.data() + start, length), expected) << length << " from " << start;
    }
  }
}

TEST(Crc32c, PiecesMakeTheWhole) {
  const std::vector<unsigned char> bytes = random_bytes(15000);
  const std::uint32_t whole = crc32c(bytes.data(), bytes.size());
  for (const std::size_t cut : {0, 1, 8, 6144, 6151, 14999, 15000}) {
    const std::uint32_t head = crc32c(bytes.data(), cut);
    EXPECT_EQ(crc32c(bytes.data() + cut, bytes.size() - cut, head), whole);
    EXPECT_EQ(crc32c_by_table(bytes.data() + cut, bytes.size() - cut, head), whole);
  }
}

}  // namespace
}  // namespace kvo
