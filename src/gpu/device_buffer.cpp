#include "gpu/device_buffer.h"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <utility>

namespace attnbench {
namespace {

constexpr unsigned char kPoison = 0xFF;
/// Neither poison nor a byte that kernels write by the line.
constexpr unsigned char kGuard = 0xA5;

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
  const std::string after = check_zone(base_ + kGuardBytes + size_bytes_, false);
  return before.empty() || after.empty() ? before + after : before + "; " + after;
}

std::string DeviceBuffer::check_zone(std::byte* zone, bool is_before) {
  std::array<unsigned char, kGuardBytes> bytes;
  runtime_.copy_to_host(bytes.data(), zone, bytes.size(), stream_.handle());
  const auto is_broken = [](unsigned char byte) { return byte != kGuard; };
  const auto first = std::find_if(bytes.begin(), bytes.end(), is_broken);
  if (first == bytes.end()) return {};
  const auto count = std::count_if(first, bytes.end(), is_broken);
  const auto last = std::find_if(bytes.rbegin(), bytes.rend(), is_broken);
  runtime_.fill(zone, kGuard, kGuardBytes, stream_.handle());
  if (is_before) {
    return fmt::format("{}: {} bytes before its start were overwritten, the nearest {} before it",
                       name_, count, last - bytes.rbegin() + 1);
  }
  return fmt::format("{}: {} bytes past its end were overwritten, the first at byte {} of {}",
                     name_, count, size_bytes_ + static_cast<std::size_t>(first - bytes.begin()),
                     size_bytes_);
}

}  // namespace attnbench
