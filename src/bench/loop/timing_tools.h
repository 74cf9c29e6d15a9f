// What timing needs of a device: a stopwatch, a way to empty its cache, its ceilings.
#pragma once

#include <memory>

#include "backends/backend.h"
#include "core/problem/problem.h"
#include "measure/measure.h"
#include "metrics/throughput.h"

namespace attnbench {

class CudaOps;
class Ops;

class TimingTools {
 public:
  virtual ~TimingTools() = default;
  /// `own_threads`: what is timed runs on threads of its own, which those of the operations must
  /// leave the cores to.
  virtual std::unique_ptr<Stopwatch> make_stopwatch(TimingMode mode, bool own_threads) = 0;
  virtual CacheFlusher& flusher() = 0;
  /// Of memory, and of the arithmetic that the backend's scores are made of.
  virtual Ceilings ceilings(const Problem& problem, const Backend& backend) = 0;
};

/// Of this machine's cores, for work on `ops`, which must outlive them; `num_threads` 0 = all.
/// Flusher and ceilings are made when first used.
std::unique_ptr<TimingTools> make_cpu_timing_tools(Ops& ops, int num_threads);
/// On the stream of `ops`, which must outlive them.
std::unique_ptr<TimingTools> make_cuda_timing_tools(CudaOps& ops);

}  // namespace attnbench
