// The list of devices, asked for in a process of its own.
#pragma once

#include <string>

#include "gpu/runtime.h"

namespace attnbench {

/// list_devices() in a child process: this process stays without a CUDA context, so that it can
/// still fork children that use the devices, and a driver that hangs or crashes is one that is
/// missing.
DeviceList probe_devices();

/// One device a line, and back; what probe_devices() sends between the processes.
std::string to_text(const DeviceList& list);
DeviceList device_list_from_text(const std::string& text);

}  // namespace attnbench
