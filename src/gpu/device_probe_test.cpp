#include "gpu/device_probe.h"

#include <doctest/doctest.h>

namespace attnbench {

TEST_CASE("a probe in a child finds what the process itself would find") {
  const DeviceList probed = probe_devices();
  const DeviceList listed = list_devices();
  CHECK(probed.missing == listed.missing);
  CHECK(to_text(probed) == to_text(listed));
}

TEST_CASE("a list of devices survives its way between processes") {
  DeviceList list;
  DeviceInfo device;
  device.index = 1;
  device.name = "NVIDIA H200";
  device.sm = 90;
  device.num_sms = 132;
  device.memory_bytes = 150'000'000'000;
  device.l2_bytes = 62914560;
  device.max_shared_bytes = 232448;
  device.pci_bus_id = "0000:1b:00.0";
  device.driver = "13.0";
  device.runtime = "13.0";
  list.devices = {DeviceInfo{}, device};
  const DeviceList back = device_list_from_text(to_text(list));
  REQUIRE(back.devices.size() == 2);
  CHECK(back.missing.empty());
  CHECK(back.devices[1].name == device.name);
  CHECK(back.devices[1].memory_bytes == device.memory_bytes);
  CHECK(back.devices[1].runtime == device.runtime);
  CHECK(device_list_from_text(to_text({{}, "no driver"})).missing == "no driver");
}

TEST_CASE("a probe whose process died is a missing device") {
  const DeviceList none = device_list_from_text("");
  CHECK(none.devices.empty());
  CHECK_FALSE(none.missing.empty());
}

}  // namespace attnbench
