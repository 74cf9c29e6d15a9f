// What the rounds of a timing say about it. The samples of one round share what the machine was at
// in those milliseconds, and so say little of what it will be a second later; rounds do.
#pragma once

#include <optional>
#include <string>
#include <vector>

#include "core/result/result.h"

namespace attnbench {

/// Standard error of the mean of the rounds' medians, relative, that half of the cases stay under;
/// 0 for fewer than 10 cases of 4 rounds and more. The mean is trimmed (Yuen): of every 6 rounds
/// the fastest and the slowest are left out, so that one second of the machine's does not decide.
/// By the samples that no other program held up, where there are enough. Why of all cases: the few
/// rounds of one may agree by chance while the machine changes.
double usual_round_error(const std::vector<Result>& results);

/// Why rounds keep a gap from being a verdict: it is within what chance gives to the means of their
/// medians, by the spread of this case's or by `usual_error` (of the difference, relative). Empty
/// when they do not, or when neither timing has 4 rounds.
std::string doubt_of_rounds(const Timing& fast, const Timing& slow, double usual_error);

}  // namespace attnbench
