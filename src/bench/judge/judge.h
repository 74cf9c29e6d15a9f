// Output of a pipeline against the reference: the error numbers and the reasons against it.
//
// judge() knows attention: which limits hold for what was quantised, which reference is decisive
// and which is only reported. Rows decide (metrics/row_rule.h); numbers over the whole batch
// (metrics/compare.h) are for reading. How bytes are compared is metrics/byte_verdicts.h's. A
// reason is a sentence for the user; no reasons means right.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "backends/backend.h"
#include "core/problem/problem.h"
#include "core/result/result.h"
#include "core/tensor.h"
#include "metrics/row_rule.h"
#include "reference/attention.h"

namespace attnbench {

/// References for one output, on the same rows.
struct Yardsticks {
  const ReferenceOutput* reference = nullptr;
  const ReferenceOutput* emulation = nullptr;
  const ReferenceOutput* unquantised = nullptr;  // null when nothing is quantised
};

/// What decides tolerance and emulation beside the problem.
struct Numerics {
  Dtype output = Dtype::kBF16;       // element type of the output tensor
  Dtype probability = Dtype::kBF16;  // what the kernel rounds P to
  bool quantised_query = false;
  bool quantised_kv = false;

  bool operator==(const Numerics&) const = default;
};

/// Whether queries and keys are multiplied as e4m3 codes: a rotated query is quantised too, but
/// reads back in 16 bits.
bool has_e4m3_products(const Problem& problem, const Numerics& numerics);

/// The rule of the emulation that err_ratio is measured by; a fused quantised output is emulated in
/// the attention dtype and rounded by the comparison.
EmulationRule emulation_rule(const Problem& problem, const Numerics& numerics);

struct Judgement {
  std::vector<std::string> reasons;  // empty = right
  ErrorStats error;
  std::optional<ErrorStats> lse_error;
  std::optional<ErrorStats> quantization_error;
  std::vector<RankErrors> rank_errors;
  /// What the checked rows were drawn with; nothing where all rows are checked.
  std::optional<std::uint64_t> sample_seed = std::nullopt;
};

/// Shares of values that static scales clip (inputs/cache/saturation.h).
struct Saturation {
  double query = 0;
  double key = 0;  // of MLA the latent entries
  double value = 0;
};
/// Adds them to quantization_error, where there is one; what clips nothing is left out.
void note_saturation(const Saturation& saturation, Judgement& judgement);

/// Empty, or why quantising costs more than validation.max_quantization_error allows: "quantization
/// error 0.046 (relative RMS against unquantised attention) is above
/// validation.max_quantization_error 0.02". Not one of the reasons of judge(), which are also asked
/// for samples and repeated runs.
std::string object_to_quantization(const Problem& problem, const std::optional<ErrorStats>& error);

/// The tables of a batch by which rows are told to which request they belong.
struct RowsOfBatch {
  std::vector<std::int32_t> query_start_loc;
  std::vector<std::int32_t> seq_lens;
  explicit RowsOfBatch(const Problem& problem);
  RowBatch batch() const { return {query_start_loc, seq_lens}; }
};

/// What decides the limits of rows (metrics/row_rule.h).
ToleranceQuery tolerance_query(const Problem& problem, const Numerics& numerics);

/// judge() by the least limits that a row can have, as if the maths rounded nothing. What passes by
/// them passes, and took no emulation; what does not says nothing yet.
Judgement judge_by_floors(const Problem& problem, const Numerics& numerics,
                          const PipelineOutput& output, const ReferenceOutput& reference);

/// Contract §4. Errors: E-INTERNAL when the output does not have the shape of the problem.
Judgement judge(const Problem& problem, const Numerics& numerics, const PipelineOutput& output,
                const Yardsticks& yardsticks);

/// Rows of which judge() says that some head's output or LSE is outside.
struct OutsideRows {
  std::vector<std::int32_t> rows;  // token indices, ascending
  std::vector<int> heads;          // of any of them, ascending
};
OutsideRows outside_rows(const Problem& problem, const Numerics& numerics,
                         const PipelineOutput& output, const Yardsticks& yardsticks);

/// One of PipelineOutput::more by its name; null when there is none.
const Tensor* find_tensor(const PipelineOutput& output, std::string_view name);

/// Empty, or a sentence naming the first byte in which two runs differ (semantics §18.2).
std::string describe_difference(const PipelineOutput& first, const PipelineOutput& second);

/// A quantised attention output and what it was made of (semantics §9).
struct QuantisedOutput {
  const Tensor& unquantised;  // [T, N, V] in the attention dtype
  const Tensor& codes;        // as output_quant_layout() says
  const Tensor& scales;
};

/// Against what the backend's own 16-bit output must give, so that an error of attention does not
/// count twice. Adds a reason for codes or scales that are not the specified bytes, and states the
/// error of the dequantised output against `exact`, the reference on nothing quantised, as
/// quantization_error. Exact but for NVFP4, where a code may be one e2m1 step off in 0.1 % of the
/// elements.
void judge_quantised_output(const Problem& problem, const QuantisedOutput& output,
                            const ReferenceOutput& exact, Judgement& judgement);

}  // namespace attnbench
