// Host memory of which the surroundings are addresses without memory: an access outside is a fault
// of the processor, whether it reads or writes and whatever it finds there.
//
// The fault does not end the program. The page that was touched becomes memory with the bytes of a
// guard zone (core/system/guard_zone.h), the access is done again and goes on, and whoever looks
// next learns which buffer it was, on which side and how far away. So an access outside is named
// where a crash could only be counted, in any thread and without a process of its own.
#pragma once

#include <cstddef>
#include <span>
#include <string>

#include "core/system/guard_zone.h"

namespace attnbench {

/// Memory of this size between two stretches of kFence bytes that are not mapped. What of the
/// memory's pages is not payload is guard zone: up to `alignment` - 1 bytes on the side of the
/// edge, at least kGuardBytes on the other one.
class FencedMemory {
 public:
  /// An access farther away may hit what belongs to others.
  static constexpr std::size_t kFence = std::size_t{16} << 20;

  /// The payload starts on a multiple of `alignment`, a power of two of at most a page. kUsual is
  /// kAtEnd. The contents are unspecified. Errors: std::bad_alloc.
  FencedMemory(std::size_t size_bytes, std::size_t alignment, Placement placement);
  ~FencedMemory();
  FencedMemory(const FencedMemory&) = delete;
  FencedMemory& operator=(const FencedMemory&) = delete;

  std::byte* data() const { return data_; }
  std::size_t size_bytes() const { return size_bytes_; }
  /// Whether these bytes lie between the fences of a memory that is watched: on pages that it has
  /// for itself.
  static bool holds(const void* begin, std::size_t size_bytes);

  /// Empty, or what was done outside of the payload since the last call: "output: 2 bytes past its
  /// end were overwritten, ..." of writes, "reads past the end of 'key' (12 bytes behind it)" of
  /// others. Zones and fences are as new then.
  std::string take_accesses(const std::string& name);

 private:
  struct Watch;

  std::span<std::byte> before() const;  // guard zones
  std::span<std::byte> after() const;
  std::string check(std::span<std::byte> zone, bool is_before, const std::string& name,
                    std::size_t gap_bytes) const;
  std::string check_fences(const std::string& name);
  void close_fences();

  std::size_t size_bytes_;
  std::size_t reserved_bytes_ = 0;
  std::byte* reserved_ = nullptr;  // with both fences
  std::byte* mapped_ = nullptr;
  std::byte* mapped_end_ = nullptr;
  std::byte* data_ = nullptr;
  Watch* watch_ = nullptr;  // null: more buffers live than are watched; a fault ends the program

  friend struct FaultHandler;
};

}  // namespace attnbench
