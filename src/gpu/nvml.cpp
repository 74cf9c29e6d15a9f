#include "gpu/nvml.h"

#include <utility>

namespace attnbench {
namespace {

// Values of nvml.h, which the toolkit need not bring.
constexpr int kSuccess = 0;
constexpr int kClockSm = 1;
constexpr int kClockMemory = 2;
constexpr int kTemperatureGpu = 0;

constexpr std::pair<unsigned long long, const char*> kReasons[] = {
    {0x4, "sw_power_cap"}, {0x8, "hw_slowdown"}, {0x10, "sync_boost"},
    {0x20, "sw_thermal"},  {0x40, "hw_thermal"}, {0x80, "hw_power_brake"},
};

std::string names_of(unsigned long long reasons) {
  std::string names;
  for (const auto& [bit, name] : kReasons) {
    if ((reasons & bit) == 0) continue;
    if (!names.empty()) names += ' ';
    names += name;
  }
  return names;
}

}  // namespace

Nvml::Nvml(const std::string& pci_bus_id) : library_({"libnvidia-ml.so.1"}) {
  int (*init)() = nullptr;
  int (*find_device)(const char*, void**) = nullptr;
  const bool complete =
      library_.bind(init, "nvmlInit_v2") && library_.bind(shutdown_, "nvmlShutdown") &&
      library_.bind(find_device, "nvmlDeviceGetHandleByPciBusId_v2") &&
      library_.bind(get_clock_, "nvmlDeviceGetClockInfo") &&
      library_.bind(get_temperature_, "nvmlDeviceGetTemperature") &&
      library_.bind(get_throttle_reasons_, "nvmlDeviceGetCurrentClocksThrottleReasons");
  if (!complete || init() != kSuccess) {
    shutdown_ = nullptr;
    missing_ = "NVML not found";
  } else if (find_device(pci_bus_id.c_str(), &device_) != kSuccess) {
    device_ = nullptr;
    missing_ = "NVML does not know device " + pci_bus_id;
  }
}

Nvml::~Nvml() {
  if (shutdown_ != nullptr) shutdown_();
}

std::optional<DeviceState> Nvml::sample() const {
  if (device_ == nullptr) return std::nullopt;
  unsigned sm = 0;
  unsigned memory = 0;
  unsigned celsius = 0;
  unsigned long long reasons = 0;
  if (get_clock_(device_, kClockSm, &sm) != kSuccess ||
      get_clock_(device_, kClockMemory, &memory) != kSuccess ||
      get_temperature_(device_, kTemperatureGpu, &celsius) != kSuccess ||
      get_throttle_reasons_(device_, &reasons) != kSuccess) {
    return std::nullopt;
  }
  return DeviceState{static_cast<int>(sm), static_cast<int>(memory), static_cast<int>(celsius),
                     names_of(reasons)};
}

}  // namespace attnbench
