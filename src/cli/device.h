// --device and --assume-sm: the device that cases run on, or why they cannot.
#pragma once

#include <string>
#include <vector>

#include "backends/backend.h"

namespace attnbench {

struct DeviceChoice {
  std::string name = "cpu";           // "cpu", "cuda:0"
  DeviceFacts facts;                  // what support is judged by
  std::vector<std::string> refusals;  // why nothing can run there; empty = it can
};

/// `device` is auto, cpu or cuda[:N]; `assume_sm` empty, or a compute capability as 90, 9.0, sm_90
/// or sm_90a. Errors: kUsage for anything else.
DeviceChoice choose_device(const std::string& device, const std::string& assume_sm);

}  // namespace attnbench
