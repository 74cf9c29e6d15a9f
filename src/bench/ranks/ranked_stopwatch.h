// The stopwatch of a pipeline over real ranks on GPUs. Rank 0's own holds its stream, reads its
// clocks and records its graphs; the other ranks do the same things when they are told to, and the
// times are those of the rank that was slowest.
#pragma once

#include <cstddef>
#include <functional>
#include <memory>
#include <vector>

#include "measure/measure.h"

namespace attnbench {

class Pipeline;

/// What rank 0 orders all ranks to do around samples, itself included. Errors: those of
/// RankChannel.
class SampleOrders {
 public:
  virtual ~SampleOrders() = default;
  /// As RankSampler has them; `flush`: whether the others empty their caches, rank 0 has done so.
  virtual void begin_sample(bool flush) = 0;
  virtual void mark() = 0;
  /// Of each rank, of each part.
  virtual std::vector<std::vector<double>> times_us() = 0;
  /// The other ranks record a graph of what is queued until end_capture(), and launch it then for
  /// the first time; rank 0 is told to by its own stopwatch. Returns its number.
  virtual std::size_t begin_capture() = 0;
  virtual void end_capture() = 0;
  /// The other ranks launch the graph of this number while rank 0 does `own`.
  virtual void launch(std::size_t graph, const std::function<void()>& own) = 0;
};

/// A pipeline whose ranks can be timed together.
class RankedTiming {
 public:
  virtual ~RankedTiming() = default;
  /// Null on the CPU, where rank 0's clock has it all: its steps end when those of all ranks have.
  virtual SampleOrders* sample_orders() = 0;
};

/// `own` for a pipeline that is not over ranks on GPUs. Otherwise a sample's times are those of the
/// rank whose sum is largest, from a moment that all ranks have waited for; graphs where `own`
/// makes them. The pipeline must outlive it.
std::unique_ptr<Stopwatch> over_ranks(Pipeline& pipeline, std::unique_ptr<Stopwatch> own);
std::unique_ptr<Stopwatch> over_ranks(SampleOrders& orders, std::unique_ptr<Stopwatch> own);

}  // namespace attnbench
