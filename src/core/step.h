// One timed part of a run: what pipelines are made of and what is measured. A pipeline hands out
// its steps in the order in which they run. bench calls each any number of times, in turns with
// other backends or recorded into a graph, so `run` must be repeatable: it reads what the steps
// before it wrote and overwrites nothing but its own output.
#pragma once

#include <functional>
#include <string>
#include <utility>

namespace attnbench {

/// `name` is shown in tables and is part of result files (timing.steps), so it says what is done
/// and not which kernel does it. `in_median` marks the steps that timing.median counts (attention
/// with its splits and merges); the others (cache write, projections, ...) are shown beside it.
struct Step {
  std::string name;  // "write_cache", "attend", "combine", ...
  bool in_median = true;
  double bytes = 0;  // unavoidable traffic: every operand read or written once; 0 = not counted
  double flops = 0;  // of pairs that the masks allow; 0 = not counted
  /// On a GPU it launches and returns; who needs the results waits for the stream. An Error thrown
  /// here ends the case, not the run.
  std::function<void()> run;
};

/// A step of the attention itself. Its bytes and flops are of the case and not of a kernel, which
/// may read more: backends are compared by them.
inline Step counted_step(std::string name, std::function<void()> run, double bytes = 0,
                         double flops = 0) {
  return {std::move(name), true, bytes, flops, std::move(run)};
}
/// A step beside it, which the throughput does not count. Its own traffic is shown with its time.
inline Step side_step(std::string name, std::function<void()> run, double bytes = 0,
                      double flops = 0) {
  return {std::move(name), false, bytes, flops, std::move(run)};
}

}  // namespace attnbench
