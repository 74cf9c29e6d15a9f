// How the timed samples of one run are judged, in cases of every family: a few rows and heads of
// each by the reference, and with a device all others by screening. What that finds suspicious is
// for the reference as well.
#pragma once

#include <cstdint>
#include <functional>
#include <optional>
#include <span>
#include <vector>

#include "bench/cases/case.h"
#include "bench/cases/screening.h"
#include "bench/judge/screen.h"
#include "bench/samples/redrawn_request.h"
#include "bench/samples/sample_draw.h"

namespace attnbench {

/// Judges one of them with the threads of `options`. Called by several threads at once.
using JudgeRequest = std::function<std::optional<Judgement>(const JudgedRequest& one,
                                                            const ReferenceOptions& options)>;

/// Judges those that are given, several at a time; the first one that is wrong decides, or the one
/// that is closest to its limit. Where some heads alone look wrong, the same rows of all heads have
/// the word, since limits go by their median. Nothing when `judge` says nothing.
std::optional<SampleVerdict> judge_requests(const std::vector<JudgedRequest>& requests,
                                            const ReferenceOptions& options,
                                            const JudgeRequest& judge);

class SampleLook {
 public:
  /// `screening`, of the case, outlives it if a sample is judged.
  explicit SampleLook(Screening& screening) : screening_(screening) {}
  ~SampleLook() {
    if (has_screened_) screening_.end_samples();
  }
  SampleLook(const SampleLook&) = delete;
  SampleLook& operator=(const SampleLook&) = delete;

  /// The ways to see a sample.
  struct Ways {
    /// By the reference of its own inputs. `screened`: the rows and heads of that request that a
    /// screening has seen, with which the reference must agree. Called by several threads at once.
    std::function<std::optional<Judgement>(
        const JudgedRequest& one, const ReferenceOptions& options, const ScreenTable& screened)>
        by_reference;
    /// These rows of all heads on the device; nothing where it cannot. Empty = never.
    std::function<std::optional<ScreenTable>(std::span<const std::int32_t> rows)> by_screening;
    /// suspicious_rows() of a table; nothing when should_stop said so.
    std::function<std::optional<std::vector<std::int32_t>>(const ScreenTable& table)> suspicious;
  };
  /// The next sample; nothing when should_stop said so. All samples of the run must be over.
  std::optional<SampleVerdict> judge(const Problem& problem, const ReferenceOptions& options,
                                     const Ways& ways);

 private:
  Screening& screening_;
  std::optional<SampleDraw> draw_;
  bool has_screened_ = false;
};

/// The rows and heads of a request, from a table of the batch with all heads.
ScreenTable table_of_request(const ScreenTable& batch, const JudgedRequest& one);

}  // namespace attnbench
