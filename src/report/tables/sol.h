// How far results are from the speed of light, and the score of SOL-ExecBench by that.
//
// The least time of a case, t_sol, is what its unavoidable work takes at the ceilings of the
// device: bytes at the measured bandwidth, operations at the rate of the matrix units. Where the
// clock was observed, that rate is the peak at this clock; else it is the measured ceiling. A
// result's share is t_sol over its time. The score compares with a baseline: S = 1 / (1 + (t -
// t_sol) / (t_b - t_sol)) is 0.5 for the time of the baseline and 1 for the speed of light
// (SOL-ExecBench, src/sol_execbench/sol_score.py). There t_sol is of an ideal B200; here it is of
// the device that ran, so scores of two devices do not compare.
//
//   case      backend      t_sol     time    share  score
//   8q1s1k    FLASH_ATTN   3.46 us   4.90 us   71%   0.50
#pragma once

#include <cmath>
#include <map>
#include <ostream>
#include <string>
#include <vector>

#include "core/result/result.h"

namespace attnbench {

/// Microseconds; NaN where ceilings or work are not known.
double speed_of_light_us(const Result& result);

/// 0 to 1 and beyond for times below t_sol; NaN where a time is missing. With a baseline that is
/// no slower than t_sol: 1 for a time that is none either, else 0.
double sol_score(double time_us, double baseline_us, double sol_us);

/// Times of the baseline in microseconds by "<scenario>/<case>": of one backend, or of the fastest
/// of each case where `backend` is empty.
std::map<std::string, double> baseline_times(const std::vector<Result>& results,
                                             const std::string& backend);

/// A line for each result with a time; without a baseline no score.
void write_sol_table(std::ostream& out, const std::vector<Result>& results,
                     const std::map<std::string, double>& baseline);

}  // namespace attnbench
