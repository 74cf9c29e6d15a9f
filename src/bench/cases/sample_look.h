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
#include "bench/cases/redrawn_request.h"
#include "bench/cases/sample_draw.h"
#include "bench/cases/screening.h"
#include "bench/judge/screen.h"

namespace attnbench {

class SampleLook {
 public:
  /// `screening`, of the case, outlives it.
  explicit SampleLook(Screening& screening) : screening_(screening) {}
  ~SampleLook() { screening_.end_samples(); }
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
};

/// The rows and heads of a request, from a table of the batch with all heads.
ScreenTable table_of_request(const ScreenTable& batch, const JudgedRequest& one);

}  // namespace attnbench
