// The list of CUDA devices, found by a child process.
//
// A process that has a CUDA context cannot fork children that use the devices, and this program
// runs cases in children, so that a kernel that hangs or destroys its context costs one case. So
// the parent must know the devices without ever opening one. The child also shields it from a
// broken driver: one that crashes, or does not answer within a minute, is a machine without devices
// and a sentence that says why.
//
//   device 0  NVIDIA H200  90  132  ...  0000:1b:00.0  13.0  13.0
//   missing   no CUDA device: the NVIDIA driver does not answer
#pragma once

#include <string>

#include "gpu/runtime.h"

namespace attnbench {

/// list_devices() in a child process. Never throws for what the driver does: `missing` of the list
/// has the reason. Takes up to some seconds where the driver is started by it.
DeviceList probe_devices();

/// What the child sends to the parent: a line a device with fields between tabs, or a line with the
/// reason why there is none. An empty text is a child that the driver has ended.
std::string to_text(const DeviceList& list);
DeviceList device_list_from_text(const std::string& text);

}  // namespace attnbench
