// Sizes and small arithmetic shared by every room.
#pragma once
#include <cstdint>
#include <string>

namespace kvo {

inline constexpr std::int64_t KiB = 1024;
inline constexpr std::int64_t MiB = 1024 * KiB;
inline constexpr std::int64_t GiB = 1024 * MiB;

constexpr std::int64_t round_up(std::int64_t value, std::int64_t unit) { return (value + unit - 1) / unit * unit; }
constexpr std::int64_t round_down(std::int64_t value, std::int64_t unit) { return value / unit * unit; }

// "1.50 GiB": for messages only.
std::string human_bytes(std::int64_t bytes);

}  // namespace kvo
