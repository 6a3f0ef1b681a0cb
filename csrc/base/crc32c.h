// CRC-32C (Castagnoli, as in iSCSI and ext4): by the CPU's own instruction where it has one, else by tables.
#pragma once
#include <cstddef>
#include <cstdint>

namespace kvo {

// crc32c(b, n, crc32c(a, m)) is the checksum of a followed by b.
std::uint32_t crc32c(const void* data, std::size_t bytes, std::uint32_t before = 0);

// The tables alone: what runs where there is no instruction, and what tests compare with.
std::uint32_t crc32c_by_table(const void* data, std::size_t bytes, std::uint32_t before = 0);
bool crc32c_has_instruction();

}  // namespace kvo
