#include "base/crc32c.h"

#include <array>
#include <bit>
#include <cstring>

#if defined(__x86_64__)
#include <nmmintrin.h>
#endif

namespace kvo {
namespace {

static_assert(std::endian::native == std::endian::little);

constexpr std::uint32_t kPolynomial = 0x82f63b78;  // reflected
using Table = std::array<std::uint32_t, 256>;

std::uint64_t load_word(const unsigned char* data) {
  std::uint64_t word = 0;
  std::memcpy(&word, data, sizeof word);
  return word;
}

// tables[k][b]: what byte b does to the checksum when k bytes follow it.
constexpr std::array<Table, 8> make_tables() {
  std::array<Table, 8> tables{};
  for (std::uint32_t byte = 0; byte < 256; ++byte) {
    std::uint32_t crc = byte;
    for (int bit = 0; bit < 8; ++bit) crc = (crc >> 1) ^ (crc & 1 ? kPolynomial : 0);
    tables[0][byte] = crc;
  }
  for (std::size_t k = 1; k < 8; ++k) {
    for (std::size_t byte = 0; byte < 256; ++byte) {
      const std::uint32_t crc = tables[k - 1][byte];
      tables[k][byte] = (crc >> 8) ^ tables[0][crc & 255];
    }
  }
  return tables;
}

constexpr std::array<Table, 8> kTables = make_tables();

// The register, before the final inversion, after `bytes` more bytes.
std::uint32_t table_register(std::uint32_t crc, const unsigned char* data, std::size_t bytes) {
  for (; bytes >= 8; data += 8, bytes -= 8) {
    const std::uint64_t word = load_word(data) ^ crc;
    crc = 0;
    for (int k = 0; k < 8; ++k) crc ^= kTables[7 - k][(word >> (8 * k)) & 255];
  }
  for (; bytes > 0; ++data, --bytes) crc = (crc >> 8) ^ kTables[0][(crc ^ *data) & 255];
  return crc;
}

#if defined(__x86_64__)

// The instruction takes three cycles but one can start in each: three independent streams, joined by tables that say
// what kStreamBytes zero bytes do to a register.
constexpr std::size_t kStreamBytes = 2048;

constexpr std::array<Table, 4> make_zeros() {
  std::array<std::uint32_t, 32> image{};  // of each bit; doubling the number of zeros squares the map
  for (int bit = 0; bit < 32; ++bit) {
    const std::uint32_t crc = std::uint32_t{1} << bit;
    image[bit] = (crc >> 8) ^ kTables[0][crc & 255];  // one zero byte
  }
  const auto apply = [](const std::array<std::uint32_t, 32>& map, std::uint32_t crc) {
    std::uint32_t out = 0;
    for (int bit = 0; bit < 32; ++bit) out ^= (crc >> bit) & 1 ? map[bit] : 0;
    return out;
  };
  for (std::size_t zeros = 1; zeros < kStreamBytes; zeros *= 2) {
    std::array<std::uint32_t, 32> twice{};
    for (int bit = 0; bit < 32; ++bit) twice[bit] = apply(image, image[bit]);
    image = twice;
  }
  std::array<Table, 4> zeros{};
  for (std::size_t k = 0; k < 4; ++k) {
    for (std::uint32_t byte = 0; byte < 256; ++byte) zeros[k][byte] = apply(image, byte << (8 * k));
  }
  return zeros;
}

constexpr std::array<Table, 4> kZeros = make_zeros();

std::uint32_t after_zeros(std::uint64_t crc) {
  return kZeros[0][crc & 255] ^ kZeros[1][(crc >> 8) & 255] ^ kZeros[2][(crc >> 16) & 255] ^ kZeros[3][crc >> 24];
}

__attribute__((target("sse4.2"))) std::uint32_t instruction_register(std::uint64_t crc, const unsigned char* data,
                                                                     std::size_t bytes) {
  for (; bytes >= 3 * kStreamBytes; data += 3 * kStreamBytes, bytes -= 3 * kStreamBytes) {
    std::uint64_t second = 0, third = 0;
    for (std::size_t at = 0; at < kStreamBytes; at += 8) {
      // Large buffers come from memory, and the CPU's own prefetch stops at every page: 1.7 times as fast with this.
      for (std::size_t k = 3; at % 64 == 0 && k < 6; ++k) _mm_prefetch(data + at + k * kStreamBytes, _MM_HINT_T0);
      crc = _mm_crc32_u64(crc, load_word(data + at));
      second = _mm_crc32_u64(second, load_word(data + kStreamBytes + at));
      third = _mm_crc32_u64(third, load_word(data + 2 * kStreamBytes + at));
    }
    crc = after_zeros(after_zeros(crc) ^ second) ^ third;
  }
  for (; bytes >= 8; data += 8, bytes -= 8) crc = _mm_crc32_u64(crc, load_word(data));
  for (; bytes > 0; ++data, --bytes) crc = _mm_crc32_u8(static_cast<std::uint32_t>(crc), *data);
  return static_cast<std::uint32_t>(crc);
}

bool has_instruction() { return __builtin_cpu_supports("sse4.2"); }

#else

std::uint32_t instruction_register(std::uint32_t crc, const unsigned char* data, std::size_t bytes) {
  return table_register(crc, data, bytes);
}

bool has_instruction() { return false; }

#endif

}  // namespace

bool crc32c_has_instruction() {
  static const bool has = has_instruction();
  return has;
}

std::uint32_t crc32c(const void* data, std::size_t bytes, std::uint32_t before) {
  if (!crc32c_has_instruction()) return crc32c_by_table(data, bytes, before);
  return ~instruction_register(~before, static_cast<const unsigned char*>(data), bytes);
}

std::uint32_t crc32c_by_table(const void* data, std::size_t bytes, std::uint32_t before) {
  return ~table_register(~before, static_cast<const unsigned char*>(data), bytes);
}

}  // namespace kvo
