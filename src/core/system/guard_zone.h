// The bytes before and behind a buffer that nobody may write: what to fill them with, and how a
// write is told. Buffers of the CPU and of the GPU both have such zones and are checked after every
// case, because a kernel that writes past its output may well give the right numbers.
#pragma once

#include <fmt/core.h>

#include <algorithm>
#include <cstddef>
#include <span>
#include <string>

namespace attnbench {

/// Bytes of the zone before and of the zone after the payload.
constexpr std::size_t kGuardBytes = 4096;
/// Neither poison nor a byte that kernels write by the line.
constexpr unsigned char kGuard = 0xA5;

/// Empty, or what was written in the zone before or after the payload of `size_bytes` of buffer
/// `name`: "kv_cache: 2 bytes past its end were overwritten, ...".
inline std::string describe_zone(std::span<const unsigned char> zone, bool is_before,
                                 const std::string& name, std::size_t size_bytes) {
  const auto is_broken = [](unsigned char byte) { return byte != kGuard; };
  const auto first = std::find_if(zone.begin(), zone.end(), is_broken);
  if (first == zone.end()) return {};
  const auto count = std::count_if(first, zone.end(), is_broken);
  const auto last = std::find_if(zone.rbegin(), zone.rend(), is_broken);
  if (is_before) {
    return fmt::format("{}: {} bytes before its start were overwritten, the nearest {} before it",
                       name, count, last - zone.rbegin() + 1);
  }
  return fmt::format("{}: {} bytes past its end were overwritten, the first at byte {} of {}", name,
                     count, size_bytes + static_cast<std::size_t>(first - zone.begin()),
                     size_bytes);
}

/// Both sentences as one; either may be empty.
inline std::string join_zones(const std::string& before, const std::string& after) {
  return before.empty() || after.empty() ? before + after : before + "; " + after;
}

}  // namespace attnbench
