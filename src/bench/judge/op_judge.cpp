// Outputs of one operation against their expectations: equal bytes, or close values.
#include <fmt/format.h>
#include <fmt/ranges.h>

#include <vector>

#include "bench/judge/op_expect.h"
#include "core/error.h"
#include "metrics/byte_verdicts.h"

namespace attnbench {
namespace {

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
