// What the backends of a case of the multimodal encoder share (semantics §10): inputs, the scales
// of its fp8 queries, keys and values, their codes, and reference results. All of it is made when
// first used and does not change.
//
// Scales come from a file, as they were calibrated, or from the data: of the forward that is
// measured, or, where a scale file is to be saved, of as many forwards as the history of largest
// values holds, the measured one last.
#pragma once

#include <array>
#include <optional>
#include <string>
#include <vector>

#include "backends/backend.h"
#include "bench/cases/memo.h"
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

class EncoderValues {
 public:
  EncoderValues(const Problem& problem, ReferenceOptions options)
      : problem_(problem), options_(std::move(options)) {}

  const Problem& problem() const { return problem_; }
  const MmInputs& inputs();
  /// Errors: those of reading the scale file. Scales of data with NaN are not finite; to refuse
  /// them is for the pipeline.
  const MmScales& scales();
  /// Codes and what they stand for; fp8 only.
  const MmForward& forward();
  /// Of the inputs, of the scale file, and how much saturates.
  const std::vector<std::string>& notices();

  /// Null when should_stop said so. `rule`: nothing = the reference itself.
  const ReferenceOutput* result(const AttentionMath& math, bool quantised,
                                const std::optional<EmulationRule>& rule);

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
  std::optional<MmInputs> inputs_;
  std::optional<MmScales> scales_;
  std::optional<MmForward> forward_;
  std::optional<std::vector<std::string>> notices_;
  std::optional<std::vector<std::int32_t>> rows_;
  Memo<ResultKey, ReferenceOutput> computed_;
};

}  // namespace attnbench
