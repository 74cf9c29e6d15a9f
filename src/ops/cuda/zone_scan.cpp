// One launch and one small copy whatever the number of buffers; a broken zone is then copied to the
// host by its buffer, which describes it.
#include "ops/cuda/zone_scan.h"

#include <string>

#include "kernels/params_measure.h"

namespace attnbench::cuda {
namespace {

constexpr int kScanThreads = 256;
/// For a zone of a mebibyte, 16 words a thread.
constexpr int kCtasPerZone = 64;
constexpr std::size_t kZonesPerBuffer = 2;

}  // namespace

KernelSpec zone_scan_spec() {
  return {
      "measure/referee.cuh",
      "attn::scan_zones",
      {{"int kThreads", std::to_string(kScanThreads)}, {"int kCtas", std::to_string(kCtasPerZone)}},
      0,
      "guard zones"};
}

/// Whether the kernel can be compiled here; a program that only runs plugins may have no compiler.
bool ZoneScan::load() {
  if (kernel_ || cannot_load_) return !cannot_load_;
  try {
    kernel_ = std::make_unique<LoadedKernel>(runtime_, store_, zone_scan_spec());
  } catch (const DeviceError&) {
    throw;
  } catch (const Error&) {
    cannot_load_ = true;
  }
  return !cannot_load_;
}

void ZoneScan::reserve(std::size_t num_zones) {
  if (num_zones <= capacity_) return;
  runtime_.release_memory(memory_);
  memory_ = nullptr;
  capacity_ = 0;
  memory_ = static_cast<std::byte*>(
      runtime_.allocate(num_zones * (sizeof(attn::GuardedZone) + sizeof(unsigned int))));
  capacity_ = num_zones;
}

std::vector<DeviceBuffer*> ZoneScan::broken_of(const std::vector<DeviceBuffer*>& buffers) {
  if (buffers.empty() || !load()) return buffers;
  std::vector<attn::GuardedZone> zones;
  for (const DeviceBuffer* buffer : buffers) {
    for (const DeviceZone& zone : buffer->zones()) {
      zones.push_back({reinterpret_cast<const unsigned char*>(zone.begin),
                       static_cast<attn::i64>(zone.size_bytes)});
    }
  }
  reserve(zones.size());
  auto* results = reinterpret_cast<unsigned int*>(memory_ + capacity_ * sizeof(attn::GuardedZone));
  runtime_.copy_to_device(memory_, zones.data(), zones.size() * sizeof(attn::GuardedZone),
                          stream_.handle());
  runtime_.fill(results, 0, zones.size() * sizeof(unsigned int), stream_.handle());
  LaunchShape shape;
  shape.grid_x = kCtasPerZone * static_cast<std::int64_t>(zones.size());
  shape.threads = kScanThreads;
  const attn::ZoneScanParams params{reinterpret_cast<const attn::GuardedZone*>(memory_), results,
                                    kGuardWord};
  kernel_->launch(shape, params, stream_.handle());
  std::vector<unsigned int> broken(zones.size());
  runtime_.copy_to_host(broken.data(), results, broken.size() * sizeof(unsigned int),
                        stream_.handle());
  std::vector<DeviceBuffer*> found;
  for (std::size_t i = 0; i < buffers.size(); ++i) {
    if (broken[kZonesPerBuffer * i] != 0 || broken[kZonesPerBuffer * i + 1] != 0) {
      found.push_back(buffers[i]);
    }
  }
  return found;
}

}  // namespace attnbench::cuda
