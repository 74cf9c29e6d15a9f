#include "bench/judge/output_quant.h"

#include <fmt/format.h>

#include <cstdlib>
#include <cstring>
#include <optional>

#include "backends/output_quant.h"
#include "metrics/compare.h"
#include "reference/quantise/nvfp4.h"

namespace attnbench {
namespace {

constexpr double kNvfp4StepShare = 1e-3;

std::span<const std::uint8_t> bytes_of(const Tensor& tensor) {
  return {reinterpret_cast<const std::uint8_t*>(tensor.bytes()), tensor.size_bytes()};
}

/// Steps between two e2m1 codes: codes of one sign are ordered like their values.
int e2m1_steps(int first, int second) {
  const auto place = [](int code) { return (code & 8) != 0 ? -(code & 7) : code & 7; };
  return std::abs(place(first) - place(second));
}

/// Empty, or why the packed codes are not those of `expected`.
std::string check_nvfp4_codes(const Tensor& expected, const Tensor& actual) {
  std::int64_t different = 0;
  const auto wanted = bytes_of(expected);
  const auto given = bytes_of(actual);
  for (std::size_t i = 0; i < wanted.size(); ++i) {
    for (const int shift : {0, 4}) {
      const int steps = e2m1_steps(wanted[i] >> shift & 15, given[i] >> shift & 15);
      if (steps > 1) {
        return fmt::format("output: byte {} is {:#04x}, expected {:#04x}", i, given[i], wanted[i]);
      }
      different += steps;
    }
  }
  const auto elements = static_cast<double>(2 * wanted.size());
  if (static_cast<double>(different) <= kNvfp4StepShare * elements) return "";
  return fmt::format("output: {} of {} codes are one step off, more than 0.1 %", different,
                     2 * wanted.size());
}

std::string check_bytes(const char* name, const Tensor& expected, const Tensor& actual) {
  if (actual.shape() != expected.shape() || actual.dtype() != expected.dtype()) {
    return fmt::format("{}: expected {} bytes of {}, got {} of {}", name, expected.size_bytes(),
                       dtype_name(expected.dtype()), actual.size_bytes(),
                       dtype_name(actual.dtype()));
  }
  const auto wanted = bytes_of(expected);
  const auto given = bytes_of(actual);
  for (std::size_t i = 0; i < wanted.size(); ++i) {
    if (wanted[i] == given[i]) continue;
    return fmt::format("{}: byte {} is {:#04x}, expected {:#04x} from the 16-bit output", name, i,
                       given[i], wanted[i]);
  }
  return "";
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
  const std::string codes = nvfp4 && same_size
                                ? check_nvfp4_codes(expected.codes, output.codes)
                                : check_bytes("output", expected.codes, output.codes);
  const std::string scales = check_bytes("output_scales", expected.scales, output.scales);
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
