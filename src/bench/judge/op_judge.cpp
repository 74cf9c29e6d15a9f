// Outputs of one operation against their expectations: equal bytes, or close values.
#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <cstdlib>
#include <cstring>
#include <limits>
#include <vector>

#include "bench/judge/op_expect.h"
#include "core/error.h"
#include "core/system/parallel.h"

namespace attnbench {
namespace {

constexpr double kNaN = std::numeric_limits<double>::quiet_NaN();

const Tensor& tensor_of(const OpExpectation& expected, bool is_first,
                        const PipelineOutput& output) {
  if (is_first) return output.output;
  if (expected.is_lse && output.lse) return *output.lse;
  for (const auto& [name, tensor] : output.more) {
    if (name == expected.name) return tensor;
  }
  fail(ErrorKind::kInternal, "the operation left no '{}'", expected.name);
}

std::vector<std::int64_t> coordinates(const std::vector<std::int64_t>& shape, std::int64_t index) {
  std::vector<std::int64_t> result(shape.size());
  for (std::size_t axis = shape.size(); axis-- > 0;) {
    result[axis] = index % shape[axis];
    index /= shape[axis];
  }
  return result;
}

/// Sums over the elements of two tensors of one type.
struct ByteTotals {
  std::int64_t differing = 0, first = -1;
  std::int64_t nan = 0, inf = 0, finite = 0;
  std::int64_t steps_over_one = 0, nibbles = 0;
  double max_abs = 0, abs = 0, error2 = 0, expected2 = 0, actual2 = 0, product = 0;
};

void count_nibbles(std::uint8_t actual, std::uint8_t expected, ByteTotals& totals) {
  for (const int shift : {0, 4}) {
    // Codes of one sign are ordered like their values.
    const auto signed_code = [shift](std::uint8_t byte) {
      const int code = byte >> shift & 0xF;
      return (code & 8) != 0 ? -(code & 7) : code;
    };
    const int distance = std::abs(signed_code(actual) - signed_code(expected));
    totals.nibbles += distance > 0 ? 1 : 0;
    totals.steps_over_one += distance > 1 ? 1 : 0;
  }
}

void count_values(double x, double y, ByteTotals& totals) {
  totals.nan += std::isnan(x) ? 1 : 0;
  totals.inf += std::isinf(x) ? 1 : 0;
  if (!std::isfinite(x) || !std::isfinite(y)) return;
  ++totals.finite;
  totals.max_abs = std::max(totals.max_abs, std::abs(x - y));
  totals.abs += std::abs(x - y);
  totals.error2 += (x - y) * (x - y);
  totals.expected2 += y * y;
  totals.actual2 += x * x;
  totals.product += x * y;
}

/// Elements [begin, end).
ByteTotals count_part(const Tensor& actual, const Tensor& expected, bool nibbles,
                      std::int64_t begin, std::int64_t end) {
  ByteTotals totals;
  const auto size = static_cast<std::int64_t>(dtype_size(actual.dtype()));
  const auto count = static_cast<std::size_t>(end - begin);
  const std::byte* const a = actual.bytes() + begin * size;
  const std::byte* const e = expected.bytes() + begin * size;
  const bool same = std::memcmp(a, e, count * static_cast<std::size_t>(size)) == 0;
  for (std::int64_t i = 0; !same && i < end - begin; ++i) {
    if (std::memcmp(a + i * size, e + i * size, static_cast<std::size_t>(size)) == 0) continue;
    if (totals.first < 0) totals.first = begin + i;
    ++totals.differing;
    if (!nibbles) continue;
    count_nibbles(std::to_integer<std::uint8_t>(a[i]), std::to_integer<std::uint8_t>(e[i]), totals);
  }
  std::vector<float> x(count);
  load_floats(actual.dtype(), a, end - begin, x.data());
  std::vector<float> y;
  if (!same) {
    y.resize(count);
    load_floats(expected.dtype(), e, end - begin, y.data());
  }
  for (std::size_t i = 0; i < count; ++i) count_values(x[i], same ? x[i] : y[i], totals);
  return totals;
}

void add(const ByteTotals& part, ByteTotals& totals) {
  if (totals.first < 0) totals.first = part.first;
  totals.differing += part.differing;
  totals.nan += part.nan;
  totals.inf += part.inf;
  totals.finite += part.finite;
  totals.steps_over_one += part.steps_over_one;
  totals.nibbles += part.nibbles;
  totals.max_abs = std::max(totals.max_abs, part.max_abs);
  totals.abs += part.abs;
  totals.error2 += part.error2;
  totals.expected2 += part.expected2;
  totals.actual2 += part.actual2;
  totals.product += part.product;
}

/// In parts that are added in their order, so that the sums do not depend on the threads.
ByteTotals count_differences(const Tensor& actual, const Tensor& expected, bool nibbles) {
  constexpr std::int64_t kPart = 1 << 16;
  const std::int64_t elements = actual.num_elements();
  std::vector<ByteTotals> parts(static_cast<std::size_t>((elements + kPart - 1) / kPart));
  for_each_chunk(elements, kPart, [&](std::int64_t begin, std::int64_t end) {
    parts[static_cast<std::size_t>(begin / kPart)] =
        count_part(actual, expected, nibbles, begin, end);
  });
  ByteTotals totals;
  for (const ByteTotals& part : parts) add(part, totals);
  return totals;
}

ErrorStats to_stats(const ByteTotals& totals, const Tensor& actual, const Tensor& expected) {
  const std::int64_t elements = actual.num_elements();
  ErrorStats stats;
  const bool any = totals.finite > 0;
  stats.max_abs = any ? totals.max_abs : kNaN;
  stats.mean_abs = any ? totals.abs / static_cast<double>(totals.finite) : kNaN;
  stats.rms_rel = totals.expected2 > 0 ? std::sqrt(totals.error2 / totals.expected2) : kNaN;
  stats.nmse = stats.rms_rel * stats.rms_rel;
  const double norms = std::sqrt(totals.actual2) * std::sqrt(totals.expected2);
  stats.cosine = norms > 0 ? std::min(1.0, totals.product / norms) : kNaN;
  stats.err_ratio = kNaN;
  stats.matched_pct = elements == 0 ? 100
                                    : 100.0 * static_cast<double>(elements - totals.differing) /
                                          static_cast<double>(elements);
  stats.nan_count = totals.nan;
  stats.inf_count = totals.inf;
  if (totals.first >= 0) {
    stats.worst_index = coordinates(actual.shape(), totals.first);
    stats.worst_actual = actual.at(totals.first);
    stats.worst_expected = expected.at(totals.first);
  }
  return stats;
}

/// "[1, 2] is 0x7f, expected 0x80": the bytes of the first element that differs.
std::string describe_first(const Tensor& actual, const Tensor& expected, std::int64_t index) {
  const std::size_t size = dtype_size(actual.dtype());
  const auto hex = [&](const Tensor& tensor) {
    std::string digits;
    for (std::size_t i = size; i-- > 0;) {
      digits += fmt::format(
          "{:02x}",
          std::to_integer<int>(tensor.bytes()[static_cast<std::size_t>(index) * size + i]));
    }
    return digits;
  };
  return fmt::format("[{}] is 0x{}, expected 0x{}",
                     fmt::join(coordinates(actual.shape(), index), ", "), hex(actual),
                     hex(expected));
}

void judge_bytes(const OpExpectation& expected, const Tensor& actual, ErrorStats& stats,
                 std::vector<std::string>& reasons) {
  if (actual.dtype() != expected.exact.dtype() || actual.shape() != expected.exact.shape()) {
    fail(ErrorKind::kInternal, "{}: expected shape [{}], got [{}]", expected.name,
         fmt::join(expected.exact.shape(), ", "), fmt::join(actual.shape(), ", "));
  }
  const ByteTotals totals = count_differences(actual, expected.exact, expected.e2m1_steps);
  stats = to_stats(totals, actual, expected.exact);
  stats.rule = expected.rule;
  stats.limit = expected.e2m1_steps ? "one e2m1 step in at most 0.1 % of the codes" : "equal bytes";
  if (totals.first < 0) return;
  const bool allowed = expected.e2m1_steps && totals.steps_over_one == 0 &&
                       totals.nibbles * 1000 <= 2 * actual.num_elements();
  if (allowed) return;
  reasons.push_back(fmt::format("{}{}; {} of {} elements differ", expected.name,
                                describe_first(actual, expected.exact, totals.first),
                                totals.differing, actual.num_elements()));
}

void judge_values(const OpExpectation& expected, const Tensor& actual,
                  const LseConvention* declared, ErrorStats& stats,
                  std::vector<std::string>& reasons) {
  const Comparison comparison{&actual, expected.values, expected.emulated, expected.rows,
                              expected.is_lse};
  const Verdict verdict = compare(comparison, expected.tolerance);
  stats = verdict.stats;
  for (const std::string& reason : verdict.reasons) {
    const bool named = expected.name == "output" || expected.is_lse;
    reasons.push_back(named ? reason : expected.name + ": " + reason);
  }
  if (verdict.passed || !expected.is_lse || declared == nullptr) return;
  std::string cause = diagnose_lse(comparison, expected.tolerance, *declared);
  if (!cause.empty()) reasons.push_back(std::move(cause));
}

}  // namespace

Judgement judge_op(const OpExpectations& expected, const PipelineOutput& output,
                   bool may_lack_lse) {
  Judgement judgement;
  bool is_first = true;
  const LseConvention* declared = output.declared_lse ? &*output.declared_lse : nullptr;
  for (const OpExpectation& expectation : expected.outputs) {
    if (expectation.is_lse && !output.lse && may_lack_lse) continue;
    const Tensor& actual = tensor_of(expectation, is_first, output);
    ErrorStats stats;
    if (expectation.by_values) {
      judge_values(expectation, actual, declared, stats, judgement.reasons);
    } else {
      judge_bytes(expectation, actual, stats, judgement.reasons);
      stats.checked_rows = stats.total_rows = expected.num_tokens;
    }
    if (is_first)
      judgement.error = std::move(stats);
    else if (expectation.is_lse)
      judgement.lse_error = std::move(stats);
    is_first = false;
  }
  return judgement;
}

}  // namespace attnbench
