#include "measure/sample_clock.h"

#include <algorithm>
#include <limits>

namespace attnbench {
namespace {

/// Why more than one for each multiprocessor: which one takes a CTA is the device's choice, and
/// some take several while others have none.
constexpr std::size_t kCtasPerSm = 4;
/// Less than this tells nothing with the coarsest timer.
constexpr double kShortestNs = 4096;

}  // namespace

KernelSpec clock_spec() { return {"measure/referee.cuh", "attn::read_clocks", {}, 0, "clock"}; }

double median_mhz(std::span<const attn::ClockReading> before,
                  std::span<const attn::ClockReading> after, double shortest_ns) {
  std::vector<double> rates;
  for (std::size_t i = 0; i < std::min(before.size(), after.size()); ++i) {
    if (before[i].nanoseconds == 0 || after[i].nanoseconds <= before[i].nanoseconds) continue;
    if (after[i].cycles <= before[i].cycles) continue;
    const auto time_ns = static_cast<double>(after[i].nanoseconds - before[i].nanoseconds);
    if (time_ns < shortest_ns) continue;
    rates.push_back(1e3 * static_cast<double>(after[i].cycles - before[i].cycles) / time_ns);
  }
  if (rates.empty()) return std::numeric_limits<double>::quiet_NaN();
  const auto middle = rates.begin() + static_cast<std::ptrdiff_t>(rates.size() / 2);
  std::nth_element(rates.begin(), middle, rates.end());
  return *middle;
}

SampleClock::SampleClock(Runtime& runtime, const Stream& stream, KernelStore& kernels)
    : runtime_(runtime),
      stream_(stream),
      num_sms_(static_cast<std::size_t>(runtime.device().num_sms)),
      kernel_(runtime, kernels, clock_spec()),
      readings_(static_cast<attn::ClockReading*>(runtime.allocate(2 * bytes()))) {
  // Why here: the driver loads a kernel when it is first launched, and waits for the stream to do
  // so, which would be for as long as the stream is held.
  read_before();
}

void SampleClock::reset() { runtime_.fill(readings_, 0, 2 * bytes(), stream_.handle()); }

void SampleClock::read(std::size_t which) {
  LaunchShape shape;
  shape.grid_x = static_cast<std::int64_t>(kCtasPerSm * num_sms_);
  shape.threads = 1;
  kernel_.launch(
      shape,
      attn::ReadClocksParams{readings_ + which * num_sms_, static_cast<unsigned int>(num_sms_)},
      stream_.handle());
}

double SampleClock::mhz() {
  std::vector<attn::ClockReading> readings(2 * num_sms_);
  runtime_.copy_to_host(readings.data(), readings_, 2 * bytes(), stream_.handle());
  const std::span<const attn::ClockReading> all(readings);
  return median_mhz(all.first(num_sms_), all.last(num_sms_), kShortestNs);
}

}  // namespace attnbench
