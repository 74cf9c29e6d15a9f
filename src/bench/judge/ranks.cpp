// The keys of one rank as attention of their own, and the comparison of its part. Positions of keys
// no longer count here: all of a rank's context lies before every query, so nothing is masked.
#include "bench/judge/ranks.h"

#include <fmt/format.h>

#include <cstring>
#include <limits>

#include "core/system/parallel.h"
#include "metadata/int_math.h"
#include "metadata/parts/dcp.h"
#include "metrics/compare.h"
#include "metrics/row_rule.h"

namespace attnbench {
namespace {

/// Rows of K or V that a rank holds, [sum of local lengths, Hk, D].
struct LocalKeys {
  std::vector<std::int32_t> lens;    // [B]
  std::vector<std::int64_t> starts;  // [B+1]
  std::vector<std::int64_t> rows;    // of AttentionInputs::key
};

LocalKeys local_keys(const Problem& problem, const AttentionInputs& inputs, int rank) {
  LocalKeys keys;
  keys.starts.push_back(0);
  for (std::size_t b = 0; b < problem.batch.size(); ++b) {
    const std::int64_t context = problem.batch[b].seq_len - problem.batch[b].query_len;
    for (std::int64_t p = 0; p < context; ++p) {
      if (dcp_rank_of(p, DcpGroup::of(problem)) == rank) {
        keys.rows.push_back(inputs.key_start_loc[b] + p);
      }
    }
    const auto end = static_cast<std::int64_t>(keys.rows.size());
    keys.lens.push_back(checked_int32(end - keys.starts.back(), "local keys"));
    keys.starts.push_back(end);
  }
  return keys;
}

Tensor take_rows(const Tensor& source, const std::vector<std::int64_t>& rows) {
  Tensor result(source.dtype(),
                {static_cast<std::int64_t>(rows.size()), source.dim(1), source.dim(2)});
  const auto row_bytes =
      static_cast<std::size_t>(source.dim(1) * source.dim(2)) * dtype_size(source.dtype());
  for_each_chunk(result.dim(0), 1024, [&](std::int64_t begin, std::int64_t end) {
    for (auto i = static_cast<std::size_t>(begin); i < static_cast<std::size_t>(end); ++i) {
      std::memcpy(result.bytes() + i * row_bytes,
                  source.bytes() + static_cast<std::size_t>(rows[i]) * row_bytes, row_bytes);
    }
  });
  return result;
}

Tensor part_of_rank(const Tensor& stacked, int rank) {
  Tensor part(stacked.dtype(), {stacked.shape().begin() + 1, stacked.shape().end()});
  if (!part.empty()) {
    std::memcpy(part.bytes(), stacked.bytes() + static_cast<std::size_t>(rank) * part.size_bytes(),
                part.size_bytes());
  }
  return part;
}

void add_reasons(const std::vector<std::string>& found, int rank,
                 std::vector<std::string>& reasons) {
  for (const std::string& reason : found) {
    reasons.push_back(fmt::format("rank {}: {}", rank, reason));
  }
}

}  // namespace

std::optional<ReferenceOutput> rank_reference(const Problem& problem, const AttentionMath& math,
                                              const AttentionInputs& inputs, int rank,
                                              const std::vector<std::int32_t>& rows,
                                              const ReferenceOptions& options,
                                              const EmulationRule* rule) {
  const LocalKeys keys = local_keys(problem, inputs, rank);
  const Tensor key = take_rows(inputs.key, keys.rows);
  const Tensor value = take_rows(inputs.value, keys.rows);
  AttentionMath local = math;
  local.causal = false;
  local.window_right = -1;
  ReferenceInputs source;
  source.query = &inputs.query;
  source.key = &key;
  source.value = &value;
  source.query_start_loc = inputs.query_start_loc;
  source.seq_lens = keys.lens;
  source.key_start_loc = keys.starts;
  return rule != nullptr ? emulate_attention(local, source, *rule, rows, options)
                         : reference_attention(local, source, rows, options);
}

RankJudgement judge_rank(const Problem& problem, const Tensor& output, const Tensor& lse, int rank,
                         const Yardsticks& yardsticks) {
  const ReferenceOutput& reference = *yardsticks.reference;
  const ReferenceOutput* const emulation = yardsticks.emulation;
  const std::span<const double> none;
  RankJudgement judgement;
  judgement.errors.rank = rank;
  ToleranceQuery query;
  query.output = problem.attention.dtype;
  query.mla = problem.attention.type == AttentionType::kMla;
  const RowsOfBatch tokens(problem);
  const Tensor own_output = part_of_rank(output, rank);
  judgement.errors.error =
      compare({&own_output, reference.output, {}, reference.rows, false}, output_tolerance(query))
          .stats;
  const RowComparison rows{
      &own_output,        reference.output,      emulation != nullptr ? emulation->output : none,
      reference.row_size, reference.output_loss, reference.rows,
      tokens.batch()};
  add_reasons(judge_rows(rows, output_row_limits(query), judgement.errors.error), rank,
              judgement.reasons);

  const Tensor own_lse = part_of_rank(lse, rank);
  const Comparison compared{&own_lse, reference.lse, {}, reference.rows, true};
  Tolerance tolerance = lse_tolerance(problem.attention.dtype, query.mla);
  tolerance.max_err_ratio = std::numeric_limits<double>::infinity();
  judgement.errors.lse_error = compare(compared, tolerance).stats;
  const LseComparison lse_rows{
      &own_lse,           reference.lse,  emulation != nullptr ? emulation->lse : none,
      reference.lse_loss, reference.rows, tokens.batch()};
  const std::vector<std::string> reasons = judge_lse_rows(
      lse_rows, lse_row_limits(problem.attention.dtype, query.mla), judgement.errors.lse_error);
  add_reasons(reasons, rank, judgement.reasons);
  const std::string cause = reasons.empty() ? "" : diagnose_lse(compared, tolerance);
  if (!cause.empty()) {
    // The cause stands first: the rest follows from it.
    judgement.reasons.insert(judgement.reasons.begin(), fmt::format("rank {}: {}", rank, cause));
  }
  return judgement;
}

bool judge_ranks(const Problem& problem, const PipelineOutput& output,
                 const std::function<Yardsticks(int rank)>& of_rank, Judgement& judgement) {
  const Tensor* partial = find_tensor(output, "rank_output");
  const Tensor* lse = find_tensor(output, "rank_lse");
  if (partial == nullptr || lse == nullptr) return true;
  for (int rank = 0; rank < static_cast<int>(partial->dim(0)); ++rank) {
    const Yardsticks yardsticks = of_rank(rank);
    if (yardsticks.reference == nullptr || yardsticks.emulation == nullptr) return false;
    RankJudgement judged = judge_rank(problem, *partial, *lse, rank, yardsticks);
    judgement.rank_errors.push_back(std::move(judged.errors));
    judgement.reasons.insert(judgement.reasons.end(), judged.reasons.begin(), judged.reasons.end());
  }
  return true;
}

}  // namespace attnbench
