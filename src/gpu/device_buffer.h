// Device memory between two guard zones, so that a write past either end is found and named.
//
// Every output and cache that a kernel sees is one of these. CUDA finds a stray write only when it
// leaves the page, so without the zones a kernel could pass that overwrites its neighbour.
#pragma once

#include <cstddef>
#include <string>

#include "core/system/guard_zone.h"
#include "gpu/runtime.h"
#include "gpu/stream.h"

namespace attnbench {

/// `runtime` and `stream` must outlive it. The payload starts on 256 bytes; the zone behind it
/// starts at its very end.
class DeviceBuffer {
 public:
  /// The payload is poison (0xFF bytes). Errors: E-CAPACITY, naming the buffer.
  DeviceBuffer(Runtime& runtime, const Stream& stream, std::size_t size_bytes, std::string name);
  ~DeviceBuffer() { runtime_.release_memory(base_); }
  DeviceBuffer(const DeviceBuffer&) = delete;
  DeviceBuffer& operator=(const DeviceBuffer&) = delete;

  void* data() const { return base_ + kGuardBytes; }
  std::size_t size_bytes() const { return size_bytes_; }
  const std::string& name() const { return name_; }

  void poison();
  /// Empty, or what was written outside of this buffer: "kv_cache: 2 bytes past its end were
  /// overwritten, ...". Waits for the stream; a broken zone is repaired, so that
  /// it is reported once.
  std::string check_guards();

 private:
  std::string check_zone(std::byte* zone, bool is_before);

  Runtime& runtime_;
  const Stream& stream_;
  std::size_t size_bytes_;
  std::string name_;
  std::byte* base_ = nullptr;
};

}  // namespace attnbench
