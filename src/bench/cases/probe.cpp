// The problem of the probe and the choice of its rows.
#include "bench/cases/probe.h"

#include <algorithm>
#include <cmath>
#include <numeric>

#include "inputs/needles.h"
#include "metadata/mask/attention_math.h"
#include "reference/row_blocks.h"

namespace attnbench {
namespace {

// Of the budget of the scenario's draw: a quarter of what both may cost.
constexpr double kFlopsShare = 3;
constexpr std::size_t kRowsShare = 4;
constexpr double kMutantFlops = 0.25e9;  // of one pass; about ten are made
constexpr std::size_t kMostMutantRows = 6;

/// Deviation of query and key elements that gives scores of deviation 1.
double probe_std(const AttentionSpec& attention) {
  const double spread = attention.scale * std::sqrt(static_cast<double>(attention.head_size));
  if (!(spread > 0)) return 1;
  const double std = 1 / std::sqrt(spread);
  constexpr double kUsual = 1e-3;  // of a scale that was written with few digits
  return std::abs(std - 1) < kUsual ? 1 : std::clamp(std, 1.0 / 16, 4.0);
}

/// Flops of every token row, and the order of the rows that have needles.
struct Rows {
  std::vector<double> flops;
  std::vector<std::int32_t> preferred;
};

Rows rows_of(const Problem& problem) {
  Rows result;
  const AttentionSpec& a = problem.attention;
  const AttentionMath math = resolve_attention_math(problem, KernelRules{});
  const double per_pair = 2.0 * a.num_heads * (a.head_size + a.v_head_size);
  std::vector<std::int32_t> ends;  // last rows of the longest and of the shortest request
  std::int64_t longest = -1;
  std::int64_t shortest = -1;
  std::int32_t token = 0;
  for (std::size_t b = 0; b < problem.batch.size(); ++b) {
    const Request& request = problem.batch[b];
    for (std::int64_t i = 0; i < request.query_len; ++i) {
      const std::int64_t position = i + request.seq_len - request.query_len;
      result.flops.push_back(per_pair *
                             static_cast<double>(count_visible(math, static_cast<std::int64_t>(b),
                                                               position, request.seq_len)));
    }
    token += static_cast<std::int32_t>(request.query_len);
    if (request.query_len < 1) continue;
    if (longest < 0 || request.seq_len > longest) {
      longest = request.seq_len;
      ends.insert(ends.begin(), token - 1);
    }
    if (shortest < 0 || request.seq_len < shortest) {
      shortest = request.seq_len;
      ends.insert(ends.begin() + (ends.empty() ? 0 : 1), token - 1);
    }
  }
  ends.resize(std::min<std::size_t>(ends.size(), 2));
  for (const std::int32_t row : ends) {
    if (std::find(result.preferred.begin(), result.preferred.end(), row) == result.preferred.end())
      result.preferred.push_back(row);
  }
  // The others by strides, so that any number of them is spread over the batch.
  const std::vector<std::int32_t> needles = needle_rows(plan_needles(problem));
  std::vector<bool> taken(result.flops.size(), false);
  for (const std::int32_t row : result.preferred) taken[static_cast<std::size_t>(row)] = true;
  for (std::size_t stride = 64; stride > 0; stride /= 2) {
    for (std::size_t i = 0; i < needles.size(); i += stride) {
      const auto row = static_cast<std::size_t>(needles[i]);
      if (taken[row]) continue;
      taken[row] = true;
      result.preferred.push_back(needles[i]);
    }
  }
  return result;
}

}  // namespace

bool has_probe(const Problem& problem) {
  return problem.attention.type != AttentionType::kOp && !problem.inputs.shapes_only &&
         problem.num_tokens() > 0;
}

Problem probe_problem(const Problem& problem) {
  Problem probe = problem;
  probe.inputs.distribution = Distribution::kProbe;
  probe.inputs.mean = 0;
  probe.inputs.seed = probe_seed(problem.inputs.seed);
  probe.inputs.std = probe_std(problem.attention);
  probe.inputs.file.reset();
  probe.mm_encoder.fp8_scale_save_path.reset();  // the scales of the scenario's values are wanted
  return probe;
}

std::vector<std::int32_t> probe_rows(const Problem& problem, const RowBudget& budget) {
  const double affordable_flops = budget.flops / kFlopsShare;
  Rows rows = rows_of(problem);
  const double all = std::accumulate(rows.flops.begin(), rows.flops.end(), 0.0);
  std::vector<std::int32_t> chosen;
  if (all <= affordable_flops && !problem.validation.max_rows) {
    chosen.resize(rows.flops.size());
    std::iota(chosen.begin(), chosen.end(), 0);
    return chosen;
  }
  const auto most = static_cast<std::size_t>(std::max<std::int64_t>(
      0, problem.validation.max_rows.value_or(static_cast<std::int64_t>(rows.flops.size()))));
  double flops = 0;
  for (const std::int32_t row : rows.preferred) {
    flops += rows.flops[static_cast<std::size_t>(row)];
    const bool affordable = problem.validation.max_rows || flops <= affordable_flops ||
                            chosen.size() < budget.least_rows / kRowsShare;
    if (chosen.size() >= most || !affordable) break;
    chosen.push_back(row);
  }
  // Few rows have needles: a number that was given is kept with others.
  if (problem.validation.max_rows && chosen.size() < most) {
    std::vector<bool> taken(rows.flops.size(), false);
    for (const std::int32_t row : chosen) taken[static_cast<std::size_t>(row)] = true;
    for (const std::int32_t row : select_rows(problem, problem.inputs.seed)) {
      if (chosen.size() >= most) break;
      if (!taken[static_cast<std::size_t>(row)]) chosen.push_back(row);
    }
  }
  std::sort(chosen.begin(), chosen.end());
  return chosen;
}

std::vector<std::int32_t> mutant_rows(const Problem& problem) {
  if (!has_probe(problem)) return {};
  const Rows rows = rows_of(problem);
  std::vector<std::int32_t> chosen;
  double flops = 0;
  for (const std::int32_t row : rows.preferred) {
    flops += rows.flops[static_cast<std::size_t>(row)];
    if (chosen.size() >= kMostMutantRows || (flops > kMutantFlops && !chosen.empty())) break;
    chosen.push_back(row);
  }
  std::sort(chosen.begin(), chosen.end());
  return chosen;
}

}  // namespace attnbench
