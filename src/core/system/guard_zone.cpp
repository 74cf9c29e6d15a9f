// The pattern goes by addresses, not by places in a zone: behind a payload of any size it begins
// with another of its bytes, and a float that is read there is aligned by its address.
#include "core/system/guard_zone.h"

#include <fmt/core.h>

#include <cstring>

namespace attnbench {
namespace {

/// Whether nobody wrote into the zone; quick, since that is nearly always so.
bool is_whole(std::span<const unsigned char> zone, std::size_t address) {
  std::uint32_t expected = 0;
  for (std::size_t i = 0; i < sizeof(expected); ++i) {
    expected |= std::uint32_t{guard_byte(address + i)} << (8 * i);
  }
  std::uint32_t difference = 0;
  std::size_t i = 0;
  for (; i + sizeof(expected) <= zone.size(); i += sizeof(expected)) {
    std::uint32_t word = 0;
    std::memcpy(&word, &zone[i], sizeof(word));
    difference |= word ^ expected;
  }
  for (; i < zone.size(); ++i)
    difference |= static_cast<std::uint32_t>(zone[i] ^ guard_byte(address + i));
  return difference == 0;
}

}  // namespace

void fill_zone(std::span<unsigned char> zone, std::size_t address) {
  std::size_t i = 0;
  for (; i < zone.size() && (address + i) % sizeof(kGuardWord) != 0; ++i) {
    zone[i] = guard_byte(address + i);
  }
  for (; i + sizeof(kGuardWord) <= zone.size(); i += sizeof(kGuardWord)) {
    std::memcpy(&zone[i], &kGuardWord, sizeof(kGuardWord));
  }
  for (; i < zone.size(); ++i) zone[i] = guard_byte(address + i);
}

void fill_zone(std::span<std::byte> zone) {
  fill_zone({reinterpret_cast<unsigned char*>(zone.data()), zone.size()},
            reinterpret_cast<std::uintptr_t>(zone.data()));
}

std::string describe_zone(std::span<const unsigned char> zone, std::size_t address, bool is_before,
                          const std::string& name, std::size_t size_bytes, std::size_t gap_bytes) {
  if (is_whole(zone, address)) return {};
  std::size_t count = 0;
  std::size_t first = 0;
  std::size_t last = 0;
  for (std::size_t i = 0; i < zone.size(); ++i) {
    if (zone[i] == guard_byte(address + i)) continue;
    if (count++ == 0) first = i;
    last = i;
  }
  const bool is_one = count == 1;
  const std::string written =
      fmt::format("{}: {} byte{} {} {} overwritten", name, count, is_one ? "" : "s",
                  is_before ? "before its start" : "past its end", is_one ? "was" : "were");
  if (is_before) {
    return fmt::format("{}, the nearest at byte -{}", written, gap_bytes + zone.size() - last);
  }
  return fmt::format("{}, the first at byte {} of a buffer of {} bytes", written,
                     size_bytes + gap_bytes + first, size_bytes);
}

std::string join_zones(const std::string& before, const std::string& after) {
  return before.empty() || after.empty() ? before + after : before + "; " + after;
}

}  // namespace attnbench
