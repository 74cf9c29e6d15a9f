// The steps of a replayed trace taken together: what a server would get out of the hour that they
// were drawn from.
//
// Cases called trace-step<N> of one scenario and backend belong together when there are at least
// two. Each stands for as many steps as any other, so the rate is the tokens of all divided by the
// time of all: long steps weigh more, as they do on a clock.
//
//   steps of       backend     steps  tokens/s  median us  p99 us  worst steps
//   an-hour/trace  FLASH_ATTN     20      3702      901.4  1872.4  20111 (1872.4 us), ...
#pragma once

#include <ostream>
#include <string>
#include <vector>

#include "core/result/result.h"

namespace attnbench {

struct TraceStepsRow {
  std::string scenario;
  std::string case_name;  // "trace" and the swept keys, without the steps
  std::string backend;
  std::size_t num_steps = 0;
  double tokens_per_s = 0;           // of attention: sum of tokens / sum of medians
  double median_us = 0;              // over steps
  double p99_us = 0;                 // the step that 99 % do not exceed
  std::vector<const Result*> worst;  // by median, at most three
};

/// In the order of the results; only timed ones count.
std::vector<TraceStepsRow> trace_steps_rows(const std::vector<Result>& results);

/// A line a row; `markdown` gives a GitHub-flavoured table. Nothing without rows.
void write_trace_steps_table(std::ostream& out, const std::vector<Result>& results, bool markdown);

}  // namespace attnbench
