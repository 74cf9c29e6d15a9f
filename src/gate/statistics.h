// What samples, and the rounds that they were taken in, say about a median.
//
// Two sources of doubt are kept apart. The samples of one round share what the machine was at in
// those milliseconds, and so say little of what it will be a second later; rounds do. A verdict has
// to be beyond the chance of both (judge_time.h). All of it is deterministic, nothing is drawn, so
// that a gate run twice on the same files says the same.
#pragma once

#include <cstddef>
#include <optional>
#include <string>
#include <vector>

#include "core/result/result.h"

namespace attnbench {

/// Quantile of any values with linear interpolation between neighbours; NaN without values.
double quantile(std::vector<double> values, double share);

/// Of a sample: with one degree of freedom less than values.
double variance(const std::vector<double>& values);

/// Median, quartiles, cycles and the rest of the samples of a timing; steps and overhead stay as
/// they are.
void summarize(Timing& timing);

/// Whether the clock of the device is known of every sample.
bool has_clocks(const Timing& timing);
/// Time times clock of every sample, where has_clocks().
std::vector<double> cycles_of(const Timing& timing);

/// Whether it is known of every sample how long its threads waited for cores.
bool has_waits(const Timing& timing);

/// The timing over those of its samples during which no thread waited longer than `share` of the
/// sample; all of them where it is not known how long they waited.
Timing quiet_part(const Timing& timing, double share);

/// Of the quiet samples of a timing; with fewer there is no telling what other programs did to it.
inline constexpr std::size_t kEnoughQuiet = 5;

/// The quiet part at the default threshold where there is enough of it, else all: what others did
/// is no property of the program.
Timing steady_part(const Timing& timing);

/// Relative standard error of a median and what it rests on.
struct MedianSpread {
  double relative = 0;            // NaN when nothing is known of it
  double degrees_of_freedom = 0;  // of the estimate
};

/// From 8 samples on by their quartiles, which outliers do not move; else by the stored noise, from
/// two samples on. A Timing without samples is believed to have had enough of them.
MedianSpread median_spread(const Timing& timing);

/// How far apart two medians of the same program may lie, relative: past this with a chance of
/// 5e-6 for normal samples (Student's t, Welch's degrees of freedom). Why so rare: a gate of 50
/// cases may be wrong once in a thousand. At most 8 standard errors, so that a few samples can
/// still show a large gap. NaN when the spread of one is unknown.
double chance_gap(const MedianSpread& a, const MedianSpread& b);
/// The same of a relative standard error that is known well.
double chance_gap(double error);

struct Interval {
  double low = 0;
  double high = 0;
};
/// Chance that the ratio of resampled medians lies below (above) the interval, at most.
inline constexpr double kBootstrapTail = 1e-4;

/// Bootstrap interval of median(numerator) / median(denominator): the bootstrap distribution of a
/// median is known exactly from its order statistics, so nothing is drawn and the same samples
/// always give the same interval. Of more than 500 samples an even selection of the sorted ones is
/// taken, which can only widen it. Neither may be empty.
Interval bootstrap_ratio(std::vector<double> numerator, std::vector<double> denominator);

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
