// Settings of a device that a backend changes.
#include "bench/loop/kept_settings.h"

#include <doctest/doctest.h>

#include "ops/cuda/testing/host_device_testing.h"

namespace attnbench {

TEST_CASE("settings that prepare() changed are named, and set back at once or at the end") {
  HostDevice device;
  const std::vector<DeviceSetting> before = device.runtime->device_settings;
  {
    KeptSettings settings(*device.ops);
    CHECK(settings.changes() == "");
    device.runtime->device_settings[0].value = 4096;
    device.runtime->device_settings[1].value = 65536;
    CHECK(settings.changes() ==
          "persisting L2 bytes from 0 to 4096, stack bytes from 1024 to 65536");
    CHECK(device.runtime->device_settings[0].value == 0);
    CHECK(device.runtime->device_settings[1].value == 65536);  // a kernel may need it
  }
  CHECK(device.runtime->device_settings == before);
}

TEST_CASE("the CPU has no settings to keep") {
  const auto ops = make_cpu_ops(1);
  CHECK(KeptSettings(*ops).changes() == "");
}

}  // namespace attnbench
