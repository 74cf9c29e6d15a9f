// What results are held against: one baseline file, or several of one machine pooled.
//
// A baseline of several runs says more than one: how far the same program comes apart from itself
// on this machine (the A/A noise floor), which no statistics of a single run can know, because
// what differs from run to run (memory layout, clocks, neighbours) is the same for all its samples.
// The floor is stored in the baseline file and used by judge_time(). Passes of one run are put
// together by the same code, so that a run in five passes is one result file of all their samples.
#pragma once

#include <optional>
#include <vector>

#include "core/result/result_file.h"

namespace attnbench {

/// Relative gaps between medians of the same case in several runs of the same program, by the
/// samples that no other program held up where there are enough of them. Gaps of at
/// most `floor_us` (microseconds) count as none, those of more than kLargestNoiseFloor (belief.h)
/// as that: beyond it a gate would see nothing. `all_cases` is twice the gap that nine of ten cases
/// stay under (about 3.3 standard deviations), or with fewer than 10 cases the largest; 0 without
/// two runs.
NoiseFloor measure_noise_floor(const std::vector<std::vector<Result>>& runs, double floor_us);

/// For passes of one run over all cases. Adds what a later pass of the same run measured of a case:
/// its samples, as further rounds. What it did not measure stays, and of what went wrong in the two
/// the worse counts.
void add_pass(Result& result, const Result& later);

/// One run out of several, as if it had been measured in one go: of each case the newest record,
/// its timing over the samples of all and with the longest waiting for cores. `runs` are in the
/// order of time, not empty; a case may be missing in some.
/// Timings are pooled as rounds, so that what differed between the runs widens the spread.
std::vector<Result> pool_runs(const std::vector<std::vector<Result>>& runs);

/// One file out of several, with the noise floor of all: what they hold and what they differ by.
/// A single file comes back as it is, with the floor that it may have stored. Errors: kUsage when
/// two are not of the same machine and cases, unless `ignore_environment`.
/// The head is one for all: runs that differ in machine or cases would need several.
ResultFile pool_baselines(std::vector<ResultFile> files, double floor_us, bool ignore_environment);

}  // namespace attnbench
