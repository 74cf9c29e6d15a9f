// The bytes before and behind a buffer that nobody may touch: what to fill them with, and how a
// write is told. Buffers of the CPU and of the GPU both have such zones and are checked after every
// case, because a kernel that writes past its output may well give the right numbers.
//
// A read shows by what it does to the result: every element of a zone, of whatever float type it is
// taken for, is NaN.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <string>

namespace attnbench {

/// Where a buffer stands.
enum class Placement {
  kUsual,    // whatever costs nothing
  kAtEnd,    // its end is the end of a mapping of its own: nothing is mapped behind it
  kAtStart,  // its start is the start of a mapping of its own
};

/// Bytes of the zone before and of the zone after the payload, at least.
constexpr std::size_t kGuardBytes = 4096;

/// What zones hold at every address that is a multiple of 4. Every byte of it is a NaN of e4m3 and
/// e5m2 (0xFF, 0x7F), both halves are NaNs of bfloat16 and float16 (0x7FFF, 0xFFFF), and the word
/// and two of them are NaNs of float and double.
///
/// Why not one byte or one half-word: e4m3 has no NaN but these two bytes, 0x7F7F is a number of
/// bfloat16, 0xFF is poison, and 0x7FFF all over is what conversions to 16 bits write for a NaN. A
/// row of either kind that is written past the end changes every other half-word.
constexpr std::uint32_t kGuardWord = 0xFFFF7FFF;

/// What a zone holds at an address of which `address` is the lowest bits.
constexpr unsigned char guard_byte(std::size_t address) {
  return static_cast<unsigned char>(kGuardWord >> (8 * (address % sizeof(kGuardWord))));
}

/// Fills `zone` with what belongs there; `address` is where its first byte lies, or will lie.
void fill_zone(std::span<unsigned char> zone, std::size_t address);
/// The same for memory that the host addresses.
void fill_zone(std::span<std::byte> zone);

/// Empty, or what was written in the zone before or after the payload of `size_bytes` of buffer
/// `name`: "kv_cache: 2 bytes past its end were overwritten, ...". `address` is where the first
/// byte of the zone lies; the zone touches the payload, or is `gap_bytes` from it.
std::string describe_zone(std::span<const unsigned char> zone, std::size_t address, bool is_before,
                          const std::string& name, std::size_t size_bytes,
                          std::size_t gap_bytes = 0);

/// Both sentences as one; either may be empty.
std::string join_zones(const std::string& before, const std::string& after);

}  // namespace attnbench
