#include "gpu/runtime.h"

#include <doctest/doctest.h>

#include "gpu/dynamic_library.h"
#include "gpu/nvml.h"
#include "gpu/stream.h"

namespace attnbench {

TEST_CASE("there are devices, or a sentence that says what is missing") {
  const DeviceList list = list_devices();
  CHECK(list.devices.empty() == !list.missing.empty());
  for (const DeviceInfo& device : list.devices) {
    CHECK(device.sm >= 50);
    CHECK(device.num_sms > 0);
    CHECK(device.memory_bytes > 0);
  }
}

TEST_CASE("a device that is not there is an E-CUDA with the reason") {
  const DeviceList list = list_devices();
  try {
    open_runtime(static_cast<int>(list.devices.size()));
    FAIL("was opened");
  } catch (const Error& error) {
    CHECK(error.kind() == ErrorKind::kCuda);
    CHECK(std::string(error.what()).find("CUDA") != std::string::npos);
  }
}

TEST_CASE("bytes go to a device and back, and an event follows another") {
  if (list_devices().devices.empty()) {
    MESSAGE("skipped: " << list_devices().missing);
    return;
  }
  const std::unique_ptr<Runtime> runtime = open_runtime(0);
  const Stream stream(*runtime);
  const std::string sent = "attention";
  void* memory = runtime->allocate(sent.size());
  runtime->copy_to_device(memory, sent.data(), sent.size(), stream.handle());
  Event first(*runtime);
  Event last(*runtime);
  first.record(stream);
  runtime->fill(memory, 'A', 1, stream.handle());
  last.record(stream);
  std::string received(sent.size(), ' ');
  runtime->copy_to_host(received.data(), memory, received.size(), stream.handle());
  runtime->release_memory(memory);
  CHECK(received == "Attention");
  CHECK(Event::elapsed_us(first, last) >= 0);
  CHECK(runtime->driver_function("cuTensorMapEncodeTiled") != nullptr);
  CHECK(runtime->driver_function("cuNoSuchFunction") == nullptr);
}

TEST_CASE("memory with a mapping of its own is read and written, with its fences open and closed") {
  if (list_devices().devices.empty()) {
    MESSAGE("skipped: " << list_devices().missing);
    return;
  }
  const std::unique_ptr<Runtime> runtime = open_runtime(0);
  const Stream stream(*runtime);
  const std::size_t granule = runtime->map_granule();
  REQUIRE(granule > 0);
  auto* memory = static_cast<std::byte*>(runtime->map(2 * granule));
  unsigned char last = 0;
  for (const bool closed : {true, false, true}) {
    runtime->set_fences(memory, closed);
    runtime->fill(memory, closed ? 1 : 2, 2 * granule, stream.handle());
    // What lies behind is there while the fence is open.
    if (!closed) runtime->fill(memory + 2 * granule, 3, 16, stream.handle());
    if (!closed) runtime->fill(memory - 16, 3, 16, stream.handle());
    runtime->copy_to_host(&last, memory + 2 * granule - 1, 1, stream.handle());
    CHECK(last == (closed ? 1 : 2));
  }
  runtime->unmap(memory);
  runtime->unmap(nullptr);
}

TEST_CASE("the management library answers with clocks, or says why it cannot") {
  const DeviceList list = list_devices();
  const Nvml nvml(list.devices.empty() ? "0000:00:00.0" : list.devices[0].pci_bus_id);
  const std::optional<DeviceState> state = nvml.sample();
  CHECK(state.has_value() == nvml.missing().empty());
  if (state) CHECK(state->sm_clock_mhz > 0);
}

TEST_CASE("a library that is not there says so and has no symbols") {
  const DynamicLibrary missing({"libno_such_library.so.1"});
  CHECK_FALSE(missing.is_open());
  CHECK(missing.problem().find("libno_such_library.so.1") != std::string::npos);
  CHECK(missing.symbol("anything") == nullptr);
  const DynamicLibrary present({"libno_such_library.so.1", "libc.so.6"});
  CHECK(present.is_open());
  int (*function)(const char*) = nullptr;
  CHECK(present.bind(function, "atoi"));
  CHECK(function("42") == 42);
}

}  // namespace attnbench
