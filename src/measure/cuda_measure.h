// Timing on a CUDA device: events, a gate before the first of them, graphs, and the eviction of its
// second-level cache.
//
// The order of one sample is: rest (rest.h), poison outputs and inputs, close the gate
// (stream_gate.h), give keys and values their values, flush the cache, read the counters
// (sample_clock.h), give the query its values, record the first event, queue the parts with an
// event after each, keep the outputs, read the counters again, open the gate, wait. So events
// bracket only work of the device, and a slow host shows as launch_overhead_us instead of as a slow
// kernel. The flush is on the same stream, so the first kernel cannot start on a warm cache. Inputs
// hold poison until everything else is queued: what works on another stream, or on a thread, finds
// nothing to work on before its time runs, and what it leaves later is not kept.
//
// Both objects use the stream of the operations that they time and no other: an event on another
// stream would be ordered by chance. Times of events have a resolution of about half a microsecond,
// so kernels shorter than a few of them are known only by their median over many samples.
#pragma once

#include <memory>

#include "core/system/clock.h"
#include "gpu/nvml.h"
#include "gpu/runtime.h"
#include "gpu/stream.h"
#include "jit/kernel_store.h"
#include "measure/measure.h"
#include "measure/rest.h"

namespace attnbench {

/// Times parts by events on `stream`, on which they must be queued without waiting for it. Until
/// everything is queued the stream is held in front of the first event, so that what the host needs
/// to launch is not timed (it is launch_overhead_us). kGraph: every part is captured once as a
/// graph, and the graph is launched instead, after a first launch that uploads it and is not timed.
/// The clocks are read while the device works, since they fall when it is idle. `runtime`, `stream`
/// and `clock` must outlive it.
///
/// With `kernels`, which must outlive it too, the clock of each sample comes from the device's own
/// counters. Before every sample the device rests as `rest` says, which is told of each; without
/// one it does not rest, pace "sustained". `nvml`: where clocks are read; null = opened for it.
std::unique_ptr<Stopwatch> make_cuda_stopwatch(Runtime& runtime, const Stream& stream,
                                               const Clock& clock, TimingMode mode,
                                               KernelStore* kernels = nullptr,
                                               std::shared_ptr<RestPolicy> rest = nullptr,
                                               std::shared_ptr<const Nvml> nvml = nullptr);

/// A CacheFlusher for the device's second-level cache; the first-level caches are emptied by every
/// launch. Overwrites, on `stream`, a buffer of four times the second-level cache, at least 256
/// MiB. The cache counts as warm where its size is unknown. Why four times: caches do not replace
/// their lines in strict order, so that a buffer of just that size may leave old ones.
/// Errors: E-CAPACITY.
/// Takes that much memory of the device while it lives.
std::unique_ptr<CacheFlusher> make_cuda_cache_flusher(Runtime& runtime, const Stream& stream);

/// Flushes by `writer` and then reads, on the same stream, as much of other memory, which was
/// written once, when it was made. What `writer` leaves in the cache are lines that have to be
/// written back before others fit, which a sample would wait for; these need not be. As cold as
/// after `writer`. Errors: those of the compiler, kCuda, E-CAPACITY. All must outlive it.
std::unique_ptr<CacheFlusher> make_cuda_clean_flusher(Runtime& runtime, const Stream& stream,
                                                      KernelStore& kernels, CacheFlusher& writer);

/// The flushers of a stream, made when they are first asked for, which must be while it is not
/// held. All must outlive it.
class CudaFlushers {
 public:
  CudaFlushers(Runtime& runtime, const Stream& stream, KernelStore& kernels)
      : runtime_(runtime), stream_(stream), kernels_(kernels) {}
  /// That which leaves the cache so; `mode` is not warm. Errors: as above.
  CacheFlusher& leaving(L2Mode mode);

 private:
  Runtime& runtime_;
  const Stream& stream_;
  KernelStore& kernels_;
  std::unique_ptr<CacheFlusher> cold_;
  std::unique_ptr<CacheFlusher> clean_;  // flushes by cold_
};

}  // namespace attnbench
