// The case of the multimodal encoder: ragged or batched queries, keys and values, also in fp8 with
// scales that are loaded or made from the data (semantics §10). make_case() makes one; what its
// backends share are the EncoderValues in it.
//
// In fp8 a run first compares scales and codes, which must be the very bytes that the definition
// gives, and then the output against the reference on the dequantised values. A case here never
// goes on to the next one (Case::move_on): no sweep changes only how an encoder does its work.
#pragma once

#include <array>
#include <deque>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include "backends/backend.h"
#include "bench/cases/case.h"
#include "bench/cases/screening.h"
#include "bench/memo.h"
#include "core/problem/problem.h"
#include "inputs/mm_inputs.h"
#include "reference/attention.h"
#include "reference/quantise/encoder.h"

namespace attnbench {

/// Names of Q, K and V, in the order of everything here that has three of something.
inline constexpr std::array<const char*, 3> kEncoderTensorNames{"query", "key", "value"};

inline bool is_fp8_encoder(const Problem& problem) {
  return problem.mm_encoder.attn_dtype == MmAttnDtype::kFp8;
}

/// What the backends of a case share: inputs, the scales of fp8 queries, keys and values, their
/// codes, and reference results. All of it is made when first used and does not change.
///
/// Scales come from a file, as they were calibrated, or from the data: of the forward that is
/// measured, or, where a scale file is to be saved, of as many forwards as the history of largest
/// values holds, the measured one last.
class EncoderValues {
 public:
  EncoderValues(const Problem& problem, ReferenceOptions options, const JudgeTools& tools = {})
      : problem_(problem), options_(std::move(options)), screening_(tools) {}

  const Problem& problem() const { return problem_; }
  const ReferenceOptions& options() const { return options_; }
  const MmInputs& inputs();
  /// Errors: those of reading the scale file. Scales of data with NaN are not finite; to refuse
  /// them is for the pipeline.
  const MmScales& scales();
  /// Codes and what they stand for; fp8 only.
  const MmForward& forward();
  /// How much of the inputs saturates; fp8 only.
  Saturation saturation();
  /// Of the inputs, of the scale file, and how much saturates.
  const std::vector<std::string>& notices();

  /// Null when should_stop said so. `rule`: nothing = the reference itself.
  const ReferenceOutput* result(const AttentionMath& math, bool quantised,
                                const std::optional<EmulationRule>& rule);
  Screening& screening() { return screening_; }
  /// As those of AttentionValues.
  std::optional<OwnedYardsticks> yardsticks(const AttentionMath& math, bool quantised,
                                            const EmulationRule& rule,
                                            const std::vector<std::int32_t>& rows);
  std::optional<ScreenTable> screen(const AttentionMath& math, bool quantised,
                                    const ScreenedOutput& output);
  /// As that of AttentionValues.
  std::optional<ScreenTable> screen_sample(const AttentionMath& math,
                                           const AttentionInputs& redrawn,
                                           std::span<const std::int32_t> places,
                                           std::span<const std::int32_t> rows,
                                           const ScreenedOutput& output);
  /// As AttentionValues::unseen_mistakes().
  std::optional<std::vector<Mutant>> unseen_mistakes(
      const AttentionMath& math, const Numerics& numerics, bool gives_lse,
      const std::optional<std::vector<Mutant>>& candidates);

 private:
  struct ResultKey {
    AttentionMath math;
    bool quantised = false;
    std::optional<EmulationRule> rule;

    bool operator==(const ResultKey&) const = default;
  };

  MmScales loaded_scales();
  MmScales dynamic_scales();
  void add_saturation_notices();
  ReferenceInputs reference_inputs(bool quantised);

  const Problem& problem_;
  ReferenceOptions options_;
  Screening screening_;
  std::optional<MmInputs> inputs_;
  std::optional<MmScales> scales_;
  std::optional<MmForward> forward_;
  std::optional<std::vector<std::string>> notices_;
  Memo<ResultKey, ReferenceOutput> computed_;
  Memo<ResultKey, ReferenceOutput> in_float32_;
  std::deque<std::pair<AttentionMath, BlindAnswers>> unseen_;
};

class EncoderCase final : public Case {
 public:
  /// `problem` must outlive the case. options: threads and the interruption of references.
  EncoderCase(const Problem& problem, const ReferenceOptions& options, const JudgeTools& tools)
      : values_(problem, options, tools) {}
  const Problem& problem() const override { return values_.problem(); }
  const std::vector<std::string>& notices() override { return values_.notices(); }
  std::unique_ptr<CaseRun> start(const Backend& backend) override;

 private:
  EncoderValues values_;
};

}  // namespace attnbench
