// Device memory between two guard zones, so that a write past either end is found and named.
//
// Every output and cache that a kernel sees is one of these. CUDA finds a stray access only when it
// leaves the page, so without the zones a kernel could pass that overwrites its neighbour. At an
// edge (core/system/guard_zone.h) the buffer has a mapping of its own, and what goes past its end,
// or before its start, is an illegal address.
#pragma once

#include <cstddef>
#include <string>
#include <vector>

#include "core/system/guard_zone.h"
#include "gpu/runtime.h"
#include "gpu/stream.h"

namespace attnbench {

/// Bytes of device memory that hold guard bytes.
struct DeviceZone {
  std::byte* begin = nullptr;
  std::size_t size_bytes = 0;
};

/// `runtime` and `stream` must outlive it. The payload starts on kAlignment bytes, which leaves up
/// to kAlignment - 1 bytes between its end and the edge of the mapping; they are guard zone. So
/// does whatever else is left of the mapping, up to `zone_bytes`.
class DeviceBuffer {
 public:
  static constexpr std::size_t kAlignment = 256;
  /// Zones of this size reach farther than a row of any tensor, and cost a device next to nothing.
  static constexpr std::size_t kWideZone = std::size_t{1} << 20;

  /// The payload is poison (0xFF bytes). A zone has `zone_bytes`, a multiple of kAlignment, at
  /// least where the buffer does not stand at that edge. Errors: E-CAPACITY, naming the buffer;
  /// at an edge also E-UNSUPPORTED where Runtime::map_granule() is 0.
  DeviceBuffer(Runtime& runtime, const Stream& stream, std::size_t size_bytes, std::string name,
               Placement placement = Placement::kUsual, std::size_t zone_bytes = kGuardBytes);
  ~DeviceBuffer() { release(); }
  DeviceBuffer(const DeviceBuffer&) = delete;
  DeviceBuffer& operator=(const DeviceBuffer&) = delete;

  void* data() const { return data_; }
  std::size_t size_bytes() const { return size_bytes_; }
  const std::string& name() const { return name_; }
  Placement placement() const { return placement_; }

  void poison();
  /// Before the payload and behind it.
  std::vector<DeviceZone> zones() const { return {before_, after_}; }
  /// Empty, or what was written outside of this buffer: "kv_cache: 2 bytes past its end were
  /// overwritten, ...". Waits for the stream; a broken zone is repaired, so that
  /// it is reported once.
  std::string check_guards();
  /// At an edge: takes away what is mapped beyond it, or puts it back. Closed at the start. Nothing
  /// may run on the device meanwhile.
  void set_closed(bool closed);
  bool is_closed() const { return is_closed_; }

 private:
  void allocate(std::size_t zone_bytes);
  void release();
  void fill(const DeviceZone& zone);
  std::string check_zone(const DeviceZone& zone, bool is_before);

  Runtime& runtime_;
  const Stream& stream_;
  std::size_t size_bytes_;
  std::string name_;
  Placement placement_;
  bool is_closed_ = false;
  std::byte* base_ = nullptr;
  std::byte* data_ = nullptr;
  DeviceZone before_;
  DeviceZone after_;
};

}  // namespace attnbench
