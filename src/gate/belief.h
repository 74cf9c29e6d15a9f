// Whether a result file can be believed: does what it says agree with itself?
//
// A gate compares numbers that somebody else wrote down. A median that is not the samples', an
// accusation that was edited away, a case that passed without a single checked row: such a file is
// no evidence for or against a program, and is refused before anything is compared. What a file of
// an earlier version does not have is not demanded; what it has must fit together. A file of which
// every number was made up so that all of them agree is believed: no reader can tell.
#pragma once

#include <string>
#include <vector>

#include "core/result/result_file.h"

namespace attnbench {

/// Every sentence about a result that contradicts itself, each with field and value, such as
/// "timing.median_us is 50, but samples_us give 100". Looked at are: the parts of the id; samples
/// that are no times; numbers of the timing that its samples do not give; waits above their
/// samples; ways of timing that are not those of the case; `passed` with a reason against it,
/// without an error, without checked rows, or with rows outside their limits;
/// numbers of errors that cannot be; rates that are not work over time; times beyond the device's
/// ceilings that are not called implausible. `l2_bytes`: the second-level cache of a GPU, 0 where
/// not known.
std::vector<std::string> contradictions(const Result& result, double l2_bytes = 0);

/// The largest A/A noise floor that a gate goes by: with a wider one it would pass anything.
inline constexpr double kLargestNoiseFloor = 0.2;

/// The same of a whole file, each sentence behind the id that it is about; of its noise floor too.
std::vector<std::string> contradictions(const ResultFile& file);

/// Errors: kFormat with the first sentences, where there are any.
void refuse_contradictions(const ResultFile& file);

/// For readers that show and do not judge: a result that contradicts itself becomes an error with
/// its contradictions as reasons, without any numbers, and a noise floor that is too wide is none.
/// Returns how many results there were.
int disbelieve(ResultFile& file);

}  // namespace attnbench
