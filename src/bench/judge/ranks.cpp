// The keys of one rank as attention of their own, and the comparison of its part. Positions of keys
// count for ALiBi only: all of a rank's context lies before every query, and what a window leaves
// out is not among the keys.
#include "bench/judge/ranks.h"

#include <fmt/format.h>

#include <algorithm>
#include <cstring>
#include <utility>

#include "core/system/parallel.h"
#include "metadata/int_math.h"
#include "metadata/parts/dcp.h"

namespace attnbench {
namespace {

Tensor take_rows(const Tensor& source, const std::vector<std::int32_t>& rows) {
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

/// Of MLA the batch of the decodes, whose part is in the latent space.
Problem problem_of_parts(const Problem& problem, std::int64_t num_rows) {
  Problem parts = problem;
  parts.output_quant = {};
  if (problem.attention.type != AttentionType::kMla) return parts;
  parts.attention.v_head_size = problem.mla.kv_lora_rank;
  parts.batch.clear();
  for (const Request& request : problem.batch) {
    if (parts.num_tokens() >= num_rows) break;
    parts.batch.push_back(request);
  }
  return parts;
}

/// Nothing when should_stop said so.
std::optional<Judgement> judge_rank(const Problem& problem, const Tensor& output, const Tensor& lse,
                                    int rank, const RankWays& ways) {
  const Yardsticks yardsticks = ways.of_rank(rank);
  if (yardsticks.reference == nullptr || yardsticks.emulation == nullptr) return std::nullopt;
  PipelineOutput part;
  part.output = part_of_rank(output, rank);
  part.lse = part_of_rank(lse, rank);
  const Problem parts = problem_of_parts(problem, part.output.dim(0));
  const Numerics numerics{problem.attention.dtype, problem.attention.dtype, false, false};
  // All of its rows count as repeated: none of them is left out of figures that runs are compared
  // by.
  const RowSample sample{yardsticks.reference->rows, yardsticks.reference->rows};
  std::optional<ScreenTable> table;
  if (ways.screen) table = ways.screen(rank, {&part.output});
  ScreenedTrial trial{parts, numerics, part, sample, yardsticks};
  if (ways.other_codes) trial.other_codes = ways.other_codes(rank);
  return judge_screened(
      trial, table ? &*table : nullptr,
      [&](const std::vector<std::int32_t>& rows) { return ways.of_rows(rank, rows); });
}

}  // namespace

RankKeys keys_of_rank(const Problem& problem, const AttentionMath& math,
                      const AttentionInputs& inputs, int rank) {
  const DcpGroup group = DcpGroup::of(problem);
  const bool has_window = math.window_left >= 0;
  RankKeys keys;
  keys.starts.push_back(0);
  keys.query_start_loc.push_back(0);
  /// `count` rows that see context keys [first, context) of request b.
  const auto add = [&](std::size_t b, std::int64_t first, std::int64_t context,
                       std::int64_t count) {
    for (std::int64_t p = first; p < context; ++p) {
      if (dcp_rank_of(p, group) != rank) continue;
      keys.rows.push_back(checked_int32(inputs.key_start_loc[b] + p, "key of a rank"));
      keys.key_positions.push_back(checked_int32(p, "position of a key"));
    }
    const auto end = static_cast<std::int64_t>(keys.rows.size());
    keys.seq_lens.push_back(checked_int32(end - keys.starts.back(), "local keys"));
    keys.starts.push_back(end);
    keys.query_start_loc.push_back(
        checked_int32(keys.query_start_loc.back() + count, "rows of a rank"));
  };
  for (std::size_t b = 0; b < problem.batch.size(); ++b) {
    const Request& request = problem.batch[b];
    const std::int64_t context = request.seq_len - request.query_len;
    for (std::int64_t p = context; p < request.seq_len; ++p) {
      keys.row_positions.push_back(checked_int32(p, "position of a row"));
    }
    if (!has_window) {
      add(b, 0, context, request.query_len);
      continue;
    }
    for (std::int64_t p = context; p < request.seq_len; ++p) {
      add(b, std::max<std::int64_t>(0, p - math.window_left), context, 1);
    }
  }
  return keys;
}

AttentionMath math_of_rank(const AttentionMath& math) {
  AttentionMath local = math;
  local.causal = false;
  local.window_left = local.window_right = -1;
  return local;
}

std::optional<ReferenceOutput> rank_reference(const Problem& problem, const AttentionMath& math,
                                              const AttentionInputs& inputs,
                                              const ReferenceInputs& values, int rank,
                                              const std::vector<std::int32_t>& rows,
                                              const ReferenceOptions& options,
                                              const EmulationRule* rule) {
  const RankKeys keys = keys_of_rank(problem, math, inputs, rank);
  const Tensor key = take_rows(*values.key, keys.rows);
  const Tensor value = take_rows(*values.value, keys.rows);
  const AttentionMath local = math_of_rank(math);
  ReferenceInputs source;
  source.query = values.query;
  source.key = &key;
  source.value = &value;
  source.query_start_loc = keys.query_start_loc;
  source.seq_lens = keys.seq_lens;
  source.key_start_loc = keys.starts;
  source.alibi_slopes = values.alibi_slopes;
  source.row_positions = keys.row_positions;
  source.key_positions = keys.key_positions;
  source.query_scale = values.query_scale;
  source.key_scales = values.key_scales;
  return rule != nullptr ? emulate_attention(local, source, *rule, rows, options)
                         : reference_attention(local, source, rows, options);
}

bool judge_ranks(const Problem& problem, const PipelineOutput& output, const RankWays& ways,
                 Judgement& judgement) {
  const Tensor* partial = find_tensor(output, "rank_output");
  const Tensor* lse = find_tensor(output, "rank_lse");
  for (const auto& [name, tensor] :
       {std::pair{"rank_output", partial}, std::pair{"rank_lse", lse}}) {
    if (tensor != nullptr && tensor->dim(0) == problem.dcp.world_size) continue;
    judgement.reasons.push_back(fmt::format("{} has the parts of {} ranks, dcp.world_size is {}",
                                            name, tensor == nullptr ? 0 : tensor->dim(0),
                                            problem.dcp.world_size));
    return true;
  }
  for (int rank = 0; rank < problem.dcp.world_size; ++rank) {
    const std::optional<Judgement> judged = judge_rank(problem, *partial, *lse, rank, ways);
    if (!judged) return false;
    judgement.rank_errors.push_back({rank, judged->error, *judged->lse_error});
    for (const std::string& reason : judged->reasons) {
      judgement.reasons.push_back(fmt::format("rank {}: {}", rank, reason));
    }
  }
  return true;
}

}  // namespace attnbench
