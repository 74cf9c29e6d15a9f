// Clocks and throttling of a device, from the management library when the machine has it.
//
// Read while samples are taken, to tell a slower kernel from a device that was held down. Nothing
// depends on it: a machine without the library gives results without clocks.
#pragma once

#include <optional>
#include <string>

#include "gpu/dynamic_library.h"

namespace attnbench {

struct DeviceState {
  int sm_clock_mhz = 0;
  int memory_clock_mhz = 0;
  int temperature_c = 0;
  /// What holds the clocks down, e.g. "sw_power_cap hw_thermal"; empty = nothing (idle and clock
  /// settings of the user are not throttling).
  std::string throttling;
};

class Nvml {
 public:
  /// `pci_bus_id` as in DeviceInfo.
  explicit Nvml(const std::string& pci_bus_id);
  ~Nvml();
  Nvml(const Nvml&) = delete;
  Nvml& operator=(const Nvml&) = delete;

  /// Why nothing can be sampled ("NVML not found"); empty when it can.
  const std::string& missing() const { return missing_; }
  /// Nothing when the library or the device does not answer.
  std::optional<DeviceState> sample() const;

 private:
  DynamicLibrary library_;
  void* device_ = nullptr;
  std::string missing_;
  int (*get_clock_)(void* device, int type, unsigned* mhz) = nullptr;
  int (*get_temperature_)(void* device, int sensor, unsigned* celsius) = nullptr;
  int (*get_throttle_reasons_)(void* device, unsigned long long* reasons) = nullptr;
  int (*shutdown_)() = nullptr;
};

}  // namespace attnbench
