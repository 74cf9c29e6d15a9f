// What a rank on a GPU does around timed samples: it waits for the others, marks points in time on
// its stream, and records graphs when they do.
//
// A sample begins on all ranks at once: behind an exchange that no rank leaves before all have come
// to it, and rank 0 comes last, because its stream is held until everything is queued everywhere.
// So the times of all ranks count from the same moment, and that of the slowest is the step's.
#pragma once

#include <cstddef>
#include <functional>
#include <memory>
#include <vector>

#include "backends/ranks/communicator.h"
#include "core/problem/enums.h"
#include "ops/ops.h"

namespace attnbench {

/// Marks and graphs on the stream of a rank.
class RankRecorder {
 public:
  virtual ~RankRecorder() = default;
  /// Leaves the second-level cache so; `mode` is not warm.
  virtual void flush(L2Mode mode) = 0;
  /// A point in time behind what is queued; `number` counts from 0 in every sample.
  virtual void mark(std::size_t number) = 0;
  /// Microseconds between neighbours of the marks 0 to `last`, once they have happened.
  virtual std::vector<double> times_us(std::size_t last) = 0;
  /// What is queued between the two becomes a graph, numbered from 0 on.
  virtual void begin_capture() = 0;
  virtual void end_capture() = 0;
  virtual void launch(std::size_t graph) = 0;
};

/// On the stream of `ops`, which must outlive it. Null on the CPU.
std::unique_ptr<RankRecorder> make_rank_recorder(Ops& ops);
using MakeRankRecorder = std::function<std::unique_ptr<RankRecorder>(Ops& ops)>;

/// Everything is called by all ranks of the communicator in the same order.
class RankSampler {
 public:
  /// Both and `recorder` must outlive it.
  RankSampler(Communicator& communicator, Ops& ops, RankRecorder& recorder);

  /// A sample begins: the caches are flushed unless they are to be warm, then the ranks wait for
  /// each other on their devices.
  void begin(L2Mode mode);
  /// A part of the sample is queued.
  void mark() { recorder_.mark(++num_marks_); }
  /// Of the parts of the sample, when all have happened.
  std::vector<double> times_us() { return recorder_.times_us(num_marks_); }

 private:
  Communicator& communicator_;
  RankRecorder& recorder_;
  std::unique_ptr<Buffer> sent_;      // what the ranks meet by
  std::unique_ptr<Buffer> received_;  // [W] of it
  std::size_t num_marks_ = 0;
};

}  // namespace attnbench
