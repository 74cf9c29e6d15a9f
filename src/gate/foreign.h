// Whether two result files may be compared at all: the same machine, the same cases.
//
// A time of another machine is no baseline, and an id says nothing of a problem whose scenario was
// edited since. So a gate refuses files that differ in either, with every reason at once, unless
// the user says --ignore-environment. What may differ is how long a case is measured: that moves
// the noise of a result, not what it is a result of. How it is checked may not: fewer checked rows
// are another verdict of the same name. Scales are reported and not refused, since a calibration is
// what one may want to compare. Results of the CPU and of a GPU may stand in one file: the
// processor is compared only where both files have results of the CPU, the device where both have
// some of a device. Directions are named: "in the baseline", "in the results".
#pragma once

#include <string>
#include <vector>

#include "core/result/result_file.h"

namespace attnbench {

/// "attention.head_size: 64 in the baseline, 128 in the results" when the problems of two results
/// differ in anything but how long they are measured, else empty. Files of scales count
/// as the same, whatever they are called and hold; files of tensors when they hold the same bytes
/// or, where that is not known, have the same path.
std::string problem_difference(const Result& before, const Result& after);

/// "kv_cache.scale_file: 'a.json' in the baseline, 'b.json' in the results" when files of scales
/// hold different bytes or, where that is not known, have different paths; else empty.
std::string scale_difference(const Result& before, const Result& after);

/// The same of all cases in both files, each sentence once, with the number of its cases: notices
/// of the gate, not reasons to refuse.
std::vector<std::string> scale_differences(const ResultFile& baseline, const ResultFile& results);

/// Everything for which a gate refuses, in the words that the user reads: why timings of the two
/// cannot be compared, a sentence each: another CPU or GPU, driver major, ranges of SM clocks that
/// do not meet, another fingerprint, or a case of the same id whose problem differs in anything but
/// how long it is measured. Empty when there is nothing.
std::vector<std::string> foreign_reasons(const ResultFile& baseline, const ResultFile& results);

}  // namespace attnbench
