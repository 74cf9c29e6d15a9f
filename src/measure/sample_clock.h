// The clock of a device's multiprocessors while one sample ran, from their own counters.
//
// Two tiny kernels read, on every multiprocessor, how many cycles it has counted and what the
// device's timer says: one before the first event of a sample and one behind its last, so that the
// time has nothing of them in it. Cycles by time of one multiprocessor is its clock. The driver's
// own figure (NVML) is of another moment and rounded to the steps of a table; it stands in where
// the counters tell nothing.
#pragma once

#include <memory>
#include <span>
#include <vector>

#include "gpu/runtime.h"
#include "gpu/stream.h"
#include "jit/kernel_spec.h"
#include "jit/kernel_store.h"
#include "jit/loaded_kernel.h"
#include "kernels/params_measure.h"

namespace attnbench {

KernelSpec clock_spec();

/// Median clock in MHz of the multiprocessors that were read twice, at least `shortest_ns` apart;
/// NaN where there is none. What was not read is zero.
///
/// The device's timer moves in steps: of 32 ns on Hopper, up to 1.024 µs on others. Of readings d
/// apart the clock is known to step / d: at 20 µs and 32 ns to 0.2 %.
double median_mhz(std::span<const attn::ClockReading> before,
                  std::span<const attn::ClockReading> after, double shortest_ns);

/// All three must outlive it.
class SampleClock {
 public:
  /// Errors: those of the compiler, kCuda, kCapacity.
  SampleClock(Runtime& runtime, const Stream& stream, KernelStore& kernels);
  ~SampleClock() { runtime_.release_memory(readings_); }
  SampleClock(const SampleClock&) = delete;
  SampleClock& operator=(const SampleClock&) = delete;

  /// Forgets the last sample. Queues a fill.
  void reset();
  /// Queue a reading each.
  void read_before() { read(0); }
  void read_after() { read(1); }
  /// Of the sample since reset(), in MHz; NaN where it was too short. Waits for the stream.
  double mhz();

 private:
  void read(std::size_t which);
  std::size_t bytes() const { return sizeof(attn::ClockReading) * num_sms_; }

  Runtime& runtime_;
  const Stream& stream_;
  std::size_t num_sms_;
  LoadedKernel kernel_;
  attn::ClockReading* readings_;  // [2, num_sms_]
};

}  // namespace attnbench
