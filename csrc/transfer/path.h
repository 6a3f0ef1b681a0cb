// How a transfer is carried out.
#pragma once
#include <array>
#include <cstdint>
#include <optional>
#include <string_view>

namespace kvo {

// dma: a copy a span, by the copy engines (memcpy on the host device, where it is called "host").
// kernel: a few CTAs copy between pages and slots, across the link.
// staged: a few CTAs copy between pages and a ring in device memory, the copy engines between ring and slots.
enum class Path { dma, kernel, staged };
inline constexpr std::array kPaths{Path::dma, Path::kernel, Path::staged};

constexpr std::string_view name_of(Path path, bool is_cuda) {
  if (path == Path::dma) return is_cuda ? "dma" : "host";
  return path == Path::kernel ? "kernel" : "staged";
}

constexpr std::optional<Path> path_named(std::string_view name) {
  for (const Path path : kPaths)
    if (name == name_of(path, true) || name == name_of(path, false)) return path;
  return std::nullopt;
}

}  // namespace kvo
