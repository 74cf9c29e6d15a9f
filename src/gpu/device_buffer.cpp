#include "gpu/device_buffer.h"

#include <array>
#include <utility>

namespace attnbench {
namespace {

constexpr unsigned char kPoison = 0xFF;

std::byte* allocate(Runtime& runtime, std::size_t size_bytes, const std::string& name) {
  try {
    return static_cast<std::byte*>(runtime.allocate(size_bytes + 2 * kGuardBytes));
  } catch (const Error& error) {
    if (error.kind() != ErrorKind::kCapacity) throw;
    fail(ErrorKind::kCapacity, "{}: {} bytes of device memory are not available ({})", name,
         size_bytes, error.what());
  }
}

}  // namespace

DeviceBuffer::DeviceBuffer(Runtime& runtime, const Stream& stream, std::size_t size_bytes,
                           std::string name)
    : runtime_(runtime), stream_(stream), size_bytes_(size_bytes), name_(std::move(name)) {
  base_ = allocate(runtime_, size_bytes_, name_);
  try {
    runtime_.fill(base_, kGuard, kGuardBytes, stream_.handle());
    runtime_.fill(base_ + kGuardBytes + size_bytes_, kGuard, kGuardBytes, stream_.handle());
    poison();
  } catch (...) {
    runtime_.release_memory(base_);
    throw;
  }
}

void DeviceBuffer::poison() {
  if (size_bytes_ > 0) runtime_.fill(data(), kPoison, size_bytes_, stream_.handle());
}

std::string DeviceBuffer::check_guards() {
  const std::string before = check_zone(base_, true);
  return join_zones(before, check_zone(base_ + kGuardBytes + size_bytes_, false));
}

std::string DeviceBuffer::check_zone(std::byte* zone, bool is_before) {
  std::array<unsigned char, kGuardBytes> bytes;
  runtime_.copy_to_host(bytes.data(), zone, bytes.size(), stream_.handle());
  std::string found = describe_zone(bytes, is_before, name_, size_bytes_);
  if (!found.empty()) runtime_.fill(zone, kGuard, kGuardBytes, stream_.handle());
  return found;
}

}  // namespace attnbench
