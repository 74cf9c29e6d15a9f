#include "gpu/device_buffer.h"

#include <algorithm>
#include <utility>

namespace attnbench {
namespace {

constexpr unsigned char kPoison = 0xFF;
/// Of a zone, uploaded; the rest of it is copied on the device.
constexpr std::size_t kPatternBytes = 4096;

std::size_t round_up(std::size_t value, std::size_t multiple) {
  return (value + multiple - 1) / multiple * multiple;
}

}  // namespace

DeviceBuffer::DeviceBuffer(Runtime& runtime, const Stream& stream, std::size_t size_bytes,
                           std::string name, Placement placement, std::size_t zone_bytes)
    : runtime_(runtime),
      stream_(stream),
      size_bytes_(size_bytes),
      name_(std::move(name)),
      placement_(placement),
      is_closed_(placement != Placement::kUsual) {
  try {
    allocate(zone_bytes);
  } catch (const Error& error) {
    if (error.kind() != ErrorKind::kCapacity) throw;
    fail(ErrorKind::kCapacity, "{}: {} bytes of device memory are not available ({})", name_,
         size_bytes, error.what());
  }
  try {
    fill(before_);
    fill(after_);
    poison();
  } catch (...) {
    release();
    throw;
  }
}

void DeviceBuffer::allocate(std::size_t zone_bytes) {
  std::size_t before = zone_bytes;
  std::size_t all = size_bytes_ + 2 * zone_bytes;
  if (placement_ == Placement::kUsual) {
    base_ = static_cast<std::byte*>(runtime_.allocate(all));
  } else {
    const std::size_t granule = runtime_.map_granule();
    if (granule == 0) fail(ErrorKind::kUnsupported, "{}: the driver maps no memory", name_);
    const std::size_t payload = round_up(size_bytes_, kAlignment);
    all = round_up(payload + zone_bytes, granule);
    base_ = static_cast<std::byte*>(runtime_.map(all));
    before = placement_ == Placement::kAtEnd ? all - payload : 0;
  }
  data_ = base_ + before;
  std::byte* const end = data_ + size_bytes_;
  const std::size_t near = std::min(before, zone_bytes);
  before_ = {data_ - near, near};
  after_ = {end, std::min(static_cast<std::size_t>(base_ + all - end), zone_bytes + kAlignment)};
}

void DeviceBuffer::release() {
  if (placement_ == Placement::kUsual) {
    runtime_.release_memory(base_);
  } else {
    runtime_.unmap(base_);
  }
}

void DeviceBuffer::set_closed(bool closed) {
  if (placement_ == Placement::kUsual) return;
  runtime_.set_fences(base_, closed);
  is_closed_ = closed;
}

void DeviceBuffer::poison() {
  if (size_bytes_ > 0) runtime_.fill(data(), kPoison, size_bytes_, stream_.handle());
}

void DeviceBuffer::fill(const DeviceZone& zone) {
  std::vector<unsigned char> pattern(std::min(zone.size_bytes, kPatternBytes));
  if (pattern.empty()) return;
  fill_zone(pattern, reinterpret_cast<std::uintptr_t>(zone.begin));
  runtime_.copy_to_device(zone.begin, pattern.data(), pattern.size(), stream_.handle());
  for (std::size_t done = pattern.size(); done < zone.size_bytes;) {
    const std::size_t next = std::min(done, zone.size_bytes - done);
    runtime_.copy_on_device(zone.begin + done, zone.begin, next, stream_.handle());
    done += next;
  }
}

std::string DeviceBuffer::check_guards() {
  const std::string before = check_zone(before_, true);
  return join_zones(before, check_zone(after_, false));
}

std::string DeviceBuffer::check_zone(const DeviceZone& zone, bool is_before) {
  if (zone.size_bytes == 0) return {};
  std::vector<unsigned char> bytes(zone.size_bytes);
  runtime_.copy_to_host(bytes.data(), zone.begin, bytes.size(), stream_.handle());
  std::string found = describe_zone(bytes, reinterpret_cast<std::uintptr_t>(zone.begin), is_before,
                                    name_, size_bytes_);
  if (!found.empty()) fill(zone);
  return found;
}

}  // namespace attnbench
