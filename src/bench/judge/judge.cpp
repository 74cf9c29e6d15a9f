// Chooses limits, compares, and collects the reasons; also the quantised output of MLA, and
// whether two runs gave the same bytes.
#include "bench/judge/judge.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <cmath>
#include <cstring>
#include <optional>
#include <set>
#include <span>
#include <string>

#include "backends/output_quant.h"
#include "core/error.h"
#include "inputs/cache/saturation.h"
#include "metadata/batch.h"
#include "metadata/int_math.h"
#include "metrics/byte_verdicts.h"
#include "metrics/compare.h"
#include "metrics/row_rule.h"
#include "reference/quantise/nvfp4.h"

namespace attnbench {
namespace {

template <class Value>
void append(std::vector<Value>& values, const std::vector<Value>& more) {
  values.insert(values.end(), more.begin(), more.end());
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

std::span<const double> values_or_none(const ReferenceOutput* output, bool is_lse) {
  if (output == nullptr) return {};
  return is_lse ? output->lse : output->output;
}

Comparison comparison(const Tensor& actual, const ReferenceOutput& expected,
                      const ReferenceOutput* emulation, bool is_lse) {
  return {&actual, values_or_none(&expected, is_lse), values_or_none(emulation, is_lse),
          expected.rows, is_lse};
}

RowComparison row_comparison(const Tensor& actual, const Yardsticks& yardsticks,
                             const RowBatch& batch) {
  const ReferenceOutput& reference = *yardsticks.reference;
  return {&actual,
          reference.output,
          values_or_none(yardsticks.emulation, false),
          reference.row_size,
          reference.output_loss,
          reference.rows,
          batch};
}

LseComparison lse_comparison(const Tensor& actual, const Yardsticks& yardsticks,
                             const RowBatch& batch) {
  const ReferenceOutput& reference = *yardsticks.reference;
  return {
      &actual,        reference.lse, values_or_none(yardsticks.emulation, true), reference.lse_loss,
      reference.rows, batch};
}

LseLimits lse_limits(const Problem& problem, const Numerics& numerics) {
  const bool mla = problem.attention.type == AttentionType::kMla;
  return lse_row_limits(problem.attention.dtype, mla, numerics.quantised_query);
}

void judge_lse(const Problem& problem, const Numerics& numerics, const PipelineOutput& output,
               const Yardsticks& yardsticks, const RowBatch& batch, Judgement& judgement) {
  const ReferenceOutput& reference = *yardsticks.reference;
  const Comparison compared = comparison(*output.lse, reference, yardsticks.emulation, true);
  const bool mla = problem.attention.type == AttentionType::kMla;
  const Tolerance tolerance = lse_tolerance(problem.attention.dtype, mla);
  judgement.lse_error = compare(compared, tolerance).stats;
  const std::vector<std::string> reasons =
      judge_lse_rows(lse_comparison(*output.lse, yardsticks, batch), lse_limits(problem, numerics),
                     *judgement.lse_error);
  if (reasons.empty()) return;
  append(judgement.reasons, reasons);
  if (const std::string cause = diagnose_lse(compared, tolerance, output.declared_lse);
      !cause.empty()) {
    judgement.reasons.push_back(cause);
  }
}

/// What decides on the error against the unquantised reference.
void name_quantization_rule(const Problem& problem, ErrorStats& error) {
  const std::optional<double>& most = problem.validation.max_quantization_error;
  error.rule = most ? "validation.max_quantization_error: against the unquantised reference"
                    : "not judged: against the unquantised reference";
  if (most) error.limit = fmt::format("rms_rel <= {:.6g}", *most);
}

void note_share(const char* name, double share, ErrorStats& error) {
  if (share > 0) error.by_name[name] = share;
}

/// Of the checked rows, what e4m3 cuts off before a fused static output is stored.
double saturated_output(const Problem& problem, const ReferenceOutput& reference) {
  constexpr double kLastRounded = 464;
  if (!has_static_fp8_output(problem) || reference.output.empty()) return 0;
  const auto count = std::count_if(
      reference.output.begin(), reference.output.end(),
      [&](double value) { return std::abs(value) > kLastRounded * problem.output_quant.scale; });
  return static_cast<double>(count) / static_cast<double>(reference.output.size());
}

/// Of the expected bytes: the quantisation is judged by itself, whatever attention has given it.
constexpr const char* kSource = " from the 16-bit output";

std::span<const std::uint8_t> bytes_of(const Tensor& tensor) {
  return {reinterpret_cast<const std::uint8_t*>(tensor.bytes()), tensor.size_bytes()};
}

float group_scale(const Problem& problem, const Tensor& scales, std::int64_t row,
                  std::int64_t group) {
  const OutputQuantSpec& spec = problem.output_quant;
  const bool by_column = spec.column_major || spec.tma_aligned;
  return scales
      .data<float>()[by_column ? group * scales.dim(1) + row : row * scales.dim(1) + group];
}

/// f32 [T, N, V].
Tensor dequantise(const Problem& problem, const QuantisedOutput& output) {
  const OutputQuantSpec& spec = problem.output_quant;
  Tensor values(Dtype::kF32, output.unquantised.shape());
  const std::int64_t columns = values.dim(1) * values.dim(2);
  if (spec.type == OutputQuantType::kNvfp4) {
    const Tensor rows =
        dequantise_nvfp4(bytes_of(output.codes), bytes_of(output.scales),
                         static_cast<float>(spec.scale), spec.swizzle, values.dim(0), columns);
    if (!values.empty()) std::memcpy(values.bytes(), rows.bytes(), values.size_bytes());
    return values;
  }
  const bool grouped = spec.type != OutputQuantType::kFp8Static;
  const std::int64_t group_size = grouped ? output_quant_group(spec.type) : columns;
  for (std::int64_t i = 0; i < values.num_elements(); ++i) {
    const float scale =
        grouped ? group_scale(problem, output.scales, i / columns, i % columns / group_size)
                : output.scales.data<float>()[0];
    values.data<float>()[i] = static_cast<float>(output.codes.at(i)) * scale;
  }
  return values;
}

}  // namespace

RowsOfBatch::RowsOfBatch(const Problem& problem) : query_start_loc(query_start_loc_of(problem)) {
  for (const Request& request : problem.batch) {
    seq_lens.push_back(checked_int32(request.seq_len, "seq_len"));
  }
}

ToleranceQuery tolerance_query(const Problem& problem, const Numerics& numerics) {
  ToleranceQuery query;
  query.output = numerics.output;
  query.quantised_kv = numerics.quantised_kv;
  query.fp8_query = numerics.quantised_query;
  query.e4m3_probability = numerics.probability == Dtype::kE4M3;
  query.probability = numerics.probability;
  query.mla = problem.attention.type == AttentionType::kMla;
  query.soft_cap = problem.attention.logits_soft_cap > 0;
  if (has_static_fp8_output(problem)) {
    query.static_fp8_scale = problem.output_quant.scale;
    query.computed = problem.attention.dtype;
  }
  return query;
}

bool has_e4m3_products(const Problem& problem, const Numerics& numerics) {
  return numerics.quantised_query && !is_rotated(problem.kv_cache.dtype);
}

EmulationRule emulation_rule(const Problem& problem, const Numerics& numerics) {
  const bool fused = problem.output_quant.type != OutputQuantType::kNone;
  return {fused ? problem.attention.dtype : numerics.output, numerics.probability,
          has_e4m3_products(problem, numerics)};
}

Judgement judge_by_floors(const Problem& problem, const Numerics& numerics,
                          const PipelineOutput& output, const ReferenceOutput& reference) {
  return judge(problem, numerics, output, {&reference, &reference, nullptr});
}

Judgement judge(const Problem& problem, const Numerics& numerics, const PipelineOutput& output,
                const Yardsticks& yardsticks) {
  const AttentionSpec& a = problem.attention;
  check_shape("output", output.output, {problem.num_tokens(), a.num_heads, a.v_head_size});
  if (output.lse) check_shape("lse", *output.lse, {a.num_heads, problem.num_tokens()});

  Judgement judgement;
  const ToleranceQuery query = tolerance_query(problem, numerics);
  const Tolerance tolerance = output_tolerance(query);
  judgement.error =
      compare(comparison(output.output, *yardsticks.reference, yardsticks.emulation, false),
              tolerance)
          .stats;
  const RowsOfBatch tokens(problem);
  const RowComparison rows = row_comparison(output.output, yardsticks, tokens.batch());
  const RowLimits limits = output_row_limits(query);
  judgement.reasons = judge_rows(rows, limits, judgement.error);
  if (output.lse) judge_lse(problem, numerics, output, yardsticks, tokens.batch(), judgement);
  if (yardsticks.unquantised != nullptr) {
    judgement.quantization_error =
        compare(comparison(output.output, *yardsticks.unquantised, yardsticks.emulation, false),
                tolerance)
            .stats;
    name_quantization_rule(problem, *judgement.quantization_error);
    note_share("saturated_output", saturated_output(problem, *yardsticks.reference),
               *judgement.quantization_error);
  }
  return judgement;
}

OutsideRows outside_rows(const Problem& problem, const Numerics& numerics,
                         const PipelineOutput& output, const Yardsticks& yardsticks) {
  const RowsOfBatch tokens(problem);
  std::vector<std::int64_t> places =
      rows_outside(row_comparison(output.output, yardsticks, tokens.batch()),
                   output_row_limits(tolerance_query(problem, numerics)));
  if (output.lse) {
    append(places, lse_rows_outside(lse_comparison(*output.lse, yardsticks, tokens.batch()),
                                    lse_limits(problem, numerics)));
  }
  const std::int64_t num_heads = problem.attention.num_heads;
  std::set<std::int32_t> rows;
  std::set<int> heads;
  for (const std::int64_t place : places) {
    rows.insert(yardsticks.reference->rows[static_cast<std::size_t>(place / num_heads)]);
    heads.insert(static_cast<int>(place % num_heads));
  }
  return {{rows.begin(), rows.end()}, {heads.begin(), heads.end()}};
}

void note_saturation(const Saturation& saturation, Judgement& judgement) {
  if (!judgement.quantization_error) return;
  note_share("saturated_query", saturation.query, *judgement.quantization_error);
  note_share("saturated_key", saturation.key, *judgement.quantization_error);
  note_share("saturated_value", saturation.value, *judgement.quantization_error);
}

std::string object_to_quantization(const Problem& problem, const std::optional<ErrorStats>& error) {
  const std::optional<double>& most = problem.validation.max_quantization_error;
  if (!most || !error || error->rms_rel <= *most || error->max_abs == 0) return "";
  if (!std::isfinite(error->rms_rel)) {
    return fmt::format(
        "quantization error cannot be taken (unquantised attention is zero or not finite), so "
        "validation.max_quantization_error {:.6g} does not hold",
        *most);
  }
  return fmt::format(
      "quantization error {:.3g} (relative RMS against unquantised attention) is above "
      "validation.max_quantization_error {:.6g}",
      error->rms_rel, *most);
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
  for (const auto& [name, tensor] : first.more) {
    if (!difference.empty()) return difference;
    const Tensor* const other = find_tensor(second, name);
    if (other == nullptr) return fmt::format("only one of two runs gives {}", name);
    difference = describe_change(name, tensor, *other);
  }
  return difference;
}

void judge_quantised_output(const Problem& problem, const QuantisedOutput& output,
                            const ReferenceOutput& exact, Judgement& judgement) {
  const OutputQuantTensors expected = quantise_output(problem, output.unquantised);
  const bool nvfp4 = problem.output_quant.type == OutputQuantType::kNvfp4;
  const bool same_size = output.codes.size_bytes() == expected.codes.size_bytes();
  const std::string codes =
      nvfp4 && same_size ? check_e2m1_codes("output", output.codes, expected.codes)
                         : check_equal_bytes("output", output.codes, expected.codes, kSource);
  const std::string scales =
      check_equal_bytes("output_scales", output.scales, expected.scales, kSource);
  for (const std::string& reason : {codes, scales}) {
    if (!reason.empty()) judgement.reasons.push_back(reason);
  }
  judgement.error.rule += ", before output quantization";
  if (!codes.empty() || !scales.empty()) return;
  const Tensor values = dequantise(problem, output);
  ToleranceQuery query;
  query.output = problem.attention.dtype;
  query.mla = true;
  judgement.quantization_error =
      compare({&values, exact.output, {}, exact.rows, false}, output_tolerance(query)).stats;
  name_quantization_rule(problem, *judgement.quantization_error);
  if (!has_static_fp8_output(problem) || output.unquantised.empty()) return;
  const std::vector<float> scale{static_cast<float>(problem.output_quant.scale)};
  const std::int64_t clipped = count_saturated(output.unquantised, scale, Dtype::kE4M3);
  note_share("saturated_output",
             static_cast<double>(clipped) / static_cast<double>(output.unquantised.num_elements()),
             *judgement.quantization_error);
}

}  // namespace attnbench
