#include "measure/sample_clock.h"

#include <doctest/doctest.h>

#include <atomic>
#include <cmath>
#include <filesystem>
#include <string>
#include <vector>

#include "gpu/host_runtime_testing.h"
#include "jit/fake_compiler_testing.h"
#include "measure/cuda_measure.h"

namespace attnbench {
namespace {

using Readings = std::vector<attn::ClockReading>;

/// A device whose multiprocessors count `mhz` cycles in a microsecond of its timer.
struct CountingDevice {
  HostRuntime runtime;
  Stream stream{runtime};
  std::atomic<int> compilations{0};
  std::filesystem::path cache =
      std::filesystem::temp_directory_path() / ("attnbench-clock-test-" + std::to_string(getpid()));
  KernelStore store{std::make_unique<FakeCompiler>(compilations), DiskCache(cache),
                    embedded_kernel_files()};
  double now_us = 1000;
  double cycles = 5e6;
  double mhz = 1755;
  std::vector<std::string> notes;

  CountingDevice() {
    runtime.on_launch = [this](const void* const* arguments) {
      notes.push_back("clock");
      const auto& params = *static_cast<const attn::ReadClocksParams*>(arguments[0]);
      for (unsigned sm = 0; sm < params.num_sms; ++sm) {
        params.readings[sm] = {static_cast<unsigned long long>(cycles) + 1000 * sm,
                               static_cast<unsigned long long>(1e3 * now_us)};
      }
    };
  }
  ~CountingDevice() { std::filesystem::remove_all(cache); }

  void work(double time_us) {
    notes.push_back("work");
    now_us += time_us;
    cycles += mhz * time_us;
  }
};

}  // namespace

TEST_CASE("the clock is the median of cycles by time over the multiprocessors read twice") {
  const Readings before{{100, 1000}, {100, 1000}, {0, 0}, {100, 1000}};
  const Readings after{
      {100 + 17550, 11000}, {100 + 19800, 11000}, {5, 11000}, {100 + 17000, 11000}};
  CHECK(median_mhz(before, after, 1000) == doctest::Approx(1755));
}

TEST_CASE("readings that are too close, missing or backwards give no clock") {
  const Readings before{{100, 1000}};
  CHECK(std::isnan(median_mhz(before, Readings{{1100, 1500}}, 1000)));
  CHECK(std::isnan(median_mhz(before, Readings{{0, 0}}, 1000)));
  CHECK(std::isnan(median_mhz(Readings{{0, 0}}, Readings{{1100, 9000}}, 1000)));
  CHECK(std::isnan(median_mhz(before, Readings{{50, 9000}}, 1000)));
  CHECK(std::isnan(median_mhz(before, {}, 1000)));
}

TEST_CASE("a sample clock forgets the sample before") {
  CountingDevice device;
  SampleClock clock(device.runtime, device.stream, device.store);
  for (const double mhz : {1980.0, 1500.0}) {
    device.mhz = mhz;
    clock.reset();
    clock.read_before();
    device.work(100);
    clock.read_after();
    CHECK(clock.mhz() == doctest::Approx(mhz).epsilon(0.001));
  }
  clock.reset();
  clock.read_before();
  CHECK(std::isnan(clock.mhz()));
}

TEST_CASE("a stopwatch reads the counters outside of what it times, and tells rest and clock") {
  CountingDevice device;
  auto rest = std::make_shared<RestPolicy>();
  auto stopwatch = make_cuda_stopwatch(device.runtime, device.stream, steady_clock(),
                                       TimingMode::kStream, &device.store, rest);
  const std::vector<Part> parts = stopwatch->prepare({{[&] { device.work(100); }}});
  // Before any stream is held: the first launch of a kernel waits for it.
  CHECK(device.notes == std::vector<std::string>{"clock"});
  device.notes.clear();
  CHECK(stopwatch->time_us(parts).size() == 1);
  CHECK(device.notes == std::vector<std::string>{"clock", "work", "clock"});
  CHECK(stopwatch->sm_mhz() == doctest::Approx(1755).epsilon(0.001));
  CHECK(stopwatch->pace() == "cool");
  CHECK(rest->factor() == 1);
  device.mhz = 1400;
  stopwatch->time_us(parts);
  CHECK(rest->factor() == 2);
}

TEST_CASE("the kernel that reads the clocks compiles for every architecture, without spills") {
  CountingDevice device;  // for its folder
  for (const int sm : {80, 89, 90, 100}) {
    try {
      const auto store = make_kernel_store(device.cache.string());
      CHECK(store->get(clock_spec(), arch_of_sm(sm)).compiled.spill_bytes == 0);
    } catch (const Error& error) {
      const std::string text = error.what();
      CHECK_MESSAGE(text.find("kernels cannot be compiled") != std::string::npos, text);
    }
  }
}

TEST_CASE("without a rest the pace is sustained") {
  CountingDevice device;
  const auto stopwatch =
      make_cuda_stopwatch(device.runtime, device.stream, steady_clock(), TimingMode::kStream);
  CHECK(stopwatch->pace() == "sustained");
}

}  // namespace attnbench
