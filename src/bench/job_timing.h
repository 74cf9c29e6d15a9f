// Timing and throughput of a prepared pipeline on the CPU.
#pragma once

#include <memory>
#include <optional>

#include "backends/backend.h"
#include "bench/bench.h"
#include "core/result.h"
#include "measure/measure.h"
#include "metrics/throughput.h"

namespace attnbench {

/// Keeps what timing needs once a run: the cache flusher and the ceilings of this machine, made
/// when first used.
class JobTimer {
 public:
  explicit JobTimer(const BenchOptions& options) : options_(options) {}

  /// Sets result.timing and result.throughput.
  void time(const Problem& problem, Pipeline& pipeline, Ops& ops, Result& result);

 private:
  CacheFlusher& flusher();
  const Ceilings& ceilings();

  const BenchOptions& options_;
  std::unique_ptr<CacheFlusher> flusher_;
  std::optional<Ceilings> ceilings_;
};

}  // namespace attnbench
