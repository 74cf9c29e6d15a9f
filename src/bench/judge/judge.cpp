#include "bench/judge/judge.h"

#include <fmt/format.h>

#include "core/error.h"
#include "metrics/byte_verdicts.h"
#include "metrics/compare.h"

namespace attnbench {
namespace {

void append(std::vector<std::string>& reasons, const std::vector<std::string>& more) {
  reasons.insert(reasons.end(), more.begin(), more.end());
}

void check_shape(const char* name, const Tensor& tensor,
                 const std::vector<std::int64_t>& expected) {
  if (tensor.shape() == expected) return;
  fail(ErrorKind::kInternal, "{}: expected shape [{}], got [{}]", name, fmt::join(expected, ", "),
       fmt::join(tensor.shape(), ", "));
}

bool has_static_fp8_output(const Problem& problem) {
  return problem.output_quant.type == OutputQuantType::kFp8Static;
}

ToleranceQuery tolerance_query(const Problem& problem, const Numerics& numerics) {
  ToleranceQuery query;
  query.output = numerics.output;
  query.quantised_kv = numerics.quantised_kv;
  query.fp8_query = numerics.quantised_query;
  query.e4m3_probability = numerics.probability == Dtype::kE4M3;
  query.mla = problem.attention.type == AttentionType::kMla;
  query.soft_cap = problem.attention.logits_soft_cap > 0;
  if (has_static_fp8_output(problem)) {
    query.static_fp8_scale = problem.output_quant.scale;
    query.computed = problem.attention.dtype;
  }
  return query;
}

std::span<const double> values_or_none(const ReferenceOutput* output, bool is_lse) {
  if (output == nullptr) return {};
  return is_lse ? output->lse : output->output;
}

Comparison comparison(const Tensor& actual, const ReferenceOutput& expected,
                      const ReferenceOutput* emulation, bool is_lse) {
  return {&actual, values_or_none(&expected, is_lse), values_or_none(emulation, is_lse),
          expected.rows, is_lse};
}

void judge_lse(const Problem& problem, const PipelineOutput& output, const Yardsticks& yardsticks,
               Judgement& judgement) {
  const Comparison compared =
      comparison(*output.lse, *yardsticks.reference, yardsticks.emulation, true);
  const Tolerance tolerance =
      lse_tolerance(problem.attention.dtype, problem.attention.type == AttentionType::kMla);
  const Verdict verdict = compare(compared, tolerance);
  judgement.lse_error = verdict.stats;
  if (verdict.passed) return;
  append(judgement.reasons, verdict.reasons);
  if (const std::string cause = diagnose_lse(compared, tolerance, output.declared_lse);
      !cause.empty()) {
    judgement.reasons.push_back(cause);
  }
}

}  // namespace

EmulationRule emulation_rule(const Problem& problem, const Numerics& numerics) {
  const bool fused = problem.output_quant.type != OutputQuantType::kNone;
  return {fused ? problem.attention.dtype : numerics.output, numerics.probability};
}

Judgement judge(const Problem& problem, const Numerics& numerics, const PipelineOutput& output,
                const Yardsticks& yardsticks) {
  const AttentionSpec& a = problem.attention;
  check_shape("output", output.output, {problem.num_tokens(), a.num_heads, a.v_head_size});
  if (output.lse) check_shape("lse", *output.lse, {a.num_heads, problem.num_tokens()});

  Judgement judgement;
  const Tolerance tolerance = output_tolerance(tolerance_query(problem, numerics));
  const Verdict verdict = compare(
      comparison(output.output, *yardsticks.reference, yardsticks.emulation, false), tolerance);
  judgement.error = verdict.stats;
  judgement.reasons = verdict.reasons;
  if (output.lse) judge_lse(problem, output, yardsticks, judgement);
  if (yardsticks.unquantised != nullptr) {
    judgement.quantization_error =
        compare(comparison(output.output, *yardsticks.unquantised, yardsticks.emulation, false),
                tolerance)
            .stats;
    judgement.quantization_error->rule = "not judged: against the unquantised reference";
  }
  return judgement;
}

const Tensor* find_tensor(const PipelineOutput& output, std::string_view name) {
  for (const auto& [known, tensor] : output.more) {
    if (known == name) return &tensor;
  }
  return nullptr;
}

std::string describe_difference(const PipelineOutput& first, const PipelineOutput& second) {
  std::string difference = describe_change("output", first.output, second.output);
  if (difference.empty() && first.lse.has_value() != second.lse.has_value()) {
    return "only one of two runs gives an LSE";
  }
  if (difference.empty() && first.lse) {
    difference = describe_change("lse", *first.lse, *second.lse);
  }
  for (std::size_t i = 0; difference.empty() && i < first.more.size(); ++i) {
    const auto& [name, tensor] = first.more[i];
    difference = describe_change(name, tensor, second.more.at(i).second);
  }
  return difference;
}

}  // namespace attnbench
