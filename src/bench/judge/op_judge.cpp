// The verdict on the outputs of an operation, and makers of expectations for op_expect*.cpp.
#include "bench/judge/op_judge.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <cstring>
#include <utility>

#include "core/error.h"
#include "core/system/parallel.h"
#include "metrics/byte_verdicts.h"
#include "reference/attention.h"

namespace attnbench {
namespace {

// Doubles of expected and emulated values that are affordable: 1 GiB.
constexpr std::int64_t kMostElements = std::int64_t{1} << 26;
constexpr std::int64_t kTokensPerTask = 64;

const Tensor& tensor_of(const OpExpectation& expected, bool is_first,
                        const PipelineOutput& output) {
  if (is_first) return output.output;
  if (expected.is_lse && output.lse) return *output.lse;
  for (const auto& [name, tensor] : output.more) {
    if (name == expected.name) return tensor;
  }
  fail(ErrorKind::kInternal, "the operation left no '{}'", expected.name);
}

void judge_bytes(const OpExpectation& expected, const Tensor& actual, ErrorStats& stats,
                 std::vector<std::string>& reasons) {
  if (actual.dtype() != expected.exact.dtype() || actual.shape() != expected.exact.shape()) {
    fail(ErrorKind::kInternal, "{}: expected shape [{}], got [{}]", expected.name,
         fmt::join(expected.exact.shape(), ", "), fmt::join(actual.shape(), ", "));
  }
  const ByteRule rule = expected.e2m1_steps ? ByteRule::kE2m1Steps : ByteRule::kEqual;
  ByteVerdict verdict = compare_bytes(actual, expected.exact, rule);
  stats = std::move(verdict.stats);
  stats.rule = expected.rule;
  stats.limit = expected.e2m1_steps ? "one e2m1 step in at most 0.1 % of the codes" : "equal bytes";
  if (verdict.passed) return;
  reasons.push_back(fmt::format("{}{}; {} of {} elements differ", expected.name, verdict.first,
                                verdict.differing, actual.num_elements()));
}

void judge_choice(const OpExpectation& expected, const Tensor& actual, ErrorStats& stats,
                  std::vector<std::string>& reasons) {
  std::string wrong = expected.wrong(actual);
  stats.rule = expected.rule;
  stats.limit = "any choice among equals";
  stats.max_abs = stats.mean_abs = wrong.empty() ? 0.0 : 1.0;
  stats.matched_pct = wrong.empty() ? 100.0 : 0.0;
  if (!wrong.empty()) reasons.push_back(std::move(wrong));
}

/// [T, columns] as rows of heads, which are compared.
Tensor with_one_head(const Tensor& tensor) {
  Tensor rows(tensor.dtype(), {tensor.dim(0), 1, tensor.dim(1)});
  std::copy_n(tensor.bytes(), tensor.size_bytes(), rows.bytes());
  return rows;
}

void judge_values(const OpExpectation& expected, const Tensor& actual,
                  const LseConvention* declared, ErrorStats& stats,
                  std::vector<std::string>& reasons) {
  const bool has_no_heads = !expected.is_lse && actual.shape().size() == 2;
  const Tensor rows = has_no_heads ? with_one_head(actual) : Tensor();
  const Comparison comparison{has_no_heads ? &rows : &actual, expected.values, expected.emulated,
                              expected.rows, expected.is_lse};
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
    } else if (expectation.wrong) {
      judge_choice(expectation, actual, stats, judgement.reasons);
      stats.checked_rows = stats.total_rows = expected.num_tokens;
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

OpExpectation equal(std::string name, std::string rule, Tensor bytes) {
  OpExpectation expected;
  expected.name = std::move(name);
  expected.rule = std::move(rule);
  expected.exact = std::move(bytes);
  return expected;
}

OpExpectation close(std::string name, const Tolerance& tolerance, std::vector<double> values,
                    std::vector<double> emulated, Dtype storage, std::vector<std::int32_t> rows) {
  OpExpectation expected;
  expected.name = std::move(name);
  expected.by_values = true;
  expected.tolerance = tolerance;
  expected.values = std::move(values);
  for_each_chunk(static_cast<std::int64_t>(emulated.size()), 1 << 16,
                 [&](std::int64_t begin, std::int64_t end) {
                   for (std::int64_t i = begin; i < end; ++i) {
                     double& value = emulated[static_cast<std::size_t>(i)];
                     value = round_to(storage, static_cast<float>(value));
                   }
                 });
  expected.emulated = std::move(emulated);
  expected.rows = std::move(rows);
  return expected;
}

OpExpectation close_lse(MergedState state, MergedState emulated, std::vector<std::int32_t> rows) {
  OpExpectation expected = close("lse", lse_tolerance(Dtype::kF32), std::move(state.lse),
                                 std::move(emulated.lse), Dtype::kF32, std::move(rows));
  expected.is_lse = true;
  return expected;
}

std::vector<std::int32_t> all_rows(std::int64_t count) {
  std::vector<std::int32_t> rows(static_cast<std::size_t>(count));
  for (std::size_t i = 0; i < rows.size(); ++i) rows[i] = static_cast<std::int32_t>(i);
  return rows;
}

std::vector<std::int32_t> checked_rows(const Problem& problem, std::int64_t row_elements) {
  const std::int64_t tokens = problem.num_tokens();
  const std::int64_t most =
      std::max<std::int64_t>(1, kMostElements / std::max<std::int64_t>(1, row_elements));
  Problem sampled = problem;
  if (!problem.validation.max_rows) sampled.validation.max_rows = most;
  if (*sampled.validation.max_rows >= tokens) return all_rows(tokens);
  return select_rows(sampled, problem.inputs.seed);
}

Tensor slice(const Tensor& x, std::int64_t first_head, std::int64_t heads, std::int64_t first,
             std::int64_t count) {
  Tensor part(x.dtype(), {x.dim(0), heads, count});
  const std::size_t size = dtype_size(x.dtype());
  const std::size_t bytes = static_cast<std::size_t>(count) * size;
  for_each_chunk(x.dim(0), kTokensPerTask, [&](std::int64_t begin, std::int64_t end) {
    std::byte* next = part.bytes() + static_cast<std::size_t>(begin * heads) * bytes;
    for (std::int64_t t = begin; t < end; ++t) {
      for (std::int64_t h = first_head; h < first_head + heads; ++h) {
        const std::int64_t from = (t * x.dim(1) + h) * x.dim(2) + first;
        std::memcpy(next, x.bytes() + static_cast<std::size_t>(from) * size, bytes);
        next += bytes;
      }
    }
  });
  return part;
}

}  // namespace attnbench
