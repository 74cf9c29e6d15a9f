// What samples say about a median: its spread, and a bootstrap interval of the ratio of two.
#pragma once

#include <cstddef>
#include <vector>

#include "core/result/result.h"

namespace attnbench {

/// Quantile of any values with linear interpolation between neighbours; NaN without values.
double quantile(std::vector<double> values, double share);

/// Of a sample: with one degree of freedom less than values.
double variance(const std::vector<double>& values);

/// Median, quartiles and the rest of the samples of a timing; steps and overhead stay as they are.
void summarize(Timing& timing);

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

}  // namespace attnbench
