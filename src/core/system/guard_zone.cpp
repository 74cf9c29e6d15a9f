// How an overwritten guard zone is told. Only the nearest byte and the count are named: a kernel
// that runs past its buffer usually writes many bytes in a row, and the nearest one tells by how
// much.
#include "core/system/guard_zone.h"

#include <fmt/core.h>

#include <algorithm>

namespace attnbench {

std::string describe_zone(std::span<const unsigned char> zone, bool is_before,
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

std::string join_zones(const std::string& before, const std::string& after) {
  return before.empty() || after.empty() ? before + after : before + "; " + after;
}

}  // namespace attnbench
