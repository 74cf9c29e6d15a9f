#include "bench/judge/output_quant.h"

#include <cstring>
#include <optional>
#include <span>
#include <string>

#include "backends/output_quant.h"
#include "metrics/byte_verdicts.h"
#include "metrics/compare.h"
#include "reference/quantise/nvfp4.h"

namespace attnbench {
namespace {

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
  judgement.quantization_error->rule = "not judged: against the unquantised reference";
}

}  // namespace attnbench
