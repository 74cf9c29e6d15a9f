// One timed part of a run: what pipelines are made of and what is measured. A pipeline hands out
// its steps in the order in which they run; bench calls each any number of times, alternately with
// others or recorded into a graph, so `run` must give the same result every time and allocate
// nothing.
#pragma once

#include <functional>
#include <string>
#include <utility>

namespace attnbench {

/// `in_median` marks the steps that timing.median counts (attention with its splits and merges);
/// the others (cache write, projections, ...) are shown beside it.
struct Step {
  std::string name;  // "write_cache", "attend", "combine", ...
  bool in_median = true;
  double bytes = 0;  // unavoidable traffic; 0 = not counted
  double flops = 0;
  std::function<void()> run;
};

inline Step counted_step(std::string name, std::function<void()> run, double bytes = 0,
                         double flops = 0) {
  return {std::move(name), true, bytes, flops, std::move(run)};
}
inline Step side_step(std::string name, std::function<void()> run, double bytes = 0,
                      double flops = 0) {
  return {std::move(name), false, bytes, flops, std::move(run)};
}

}  // namespace attnbench
