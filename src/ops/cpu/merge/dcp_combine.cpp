// Combining the partial results of the ranks of a decode-context group by their LSEs (semantics
// §7.3 steps 2 and 3, §7.5). Partial results come from other processes or from plugins, so an LSE
// that is no LSE (NaN, +inf) counts as "saw no key", and a partial of weight 0 is never read: it
// may hold NaN. Ranks are summed in their order, in f32, and rounded once.
#include <algorithm>
#include <cmath>
#include <limits>

#include "core/numbers/dtype.h"
#include "kernels/params_dcp.h"
#include "ops/cpu/cpu_ops.h"
#include "ops/cpu/rows.h"

namespace attnbench::cpu {
namespace {

/// e^x, or 2^x where the LSEs are to base 2; logarithm() likewise.
float power(const attn::RankLses& lses, float x) {
  return lses.base_two != 0 ? std::exp2(x) : std::exp(x);
}
float logarithm(const attn::RankLses& lses, float x) {
  return lses.base_two != 0 ? std::log2(x) : std::log(x);
}

/// LSE of a rank; NaN and +inf are no LSE.
float rank_lse(const attn::RankLses& lses, int rank, attn::i64 token, int head) {
  const float lse = lses.lse[rank * lses.rank_stride + token * lses.token_stride +
                             attn::i64{head} * lses.head_stride];
  return lse < std::numeric_limits<float>::infinity() ? lse : kNegInf;
}

/// ln sum e^lse over the ranks; -inf when none saw a key.
float combined_lse(const attn::RankLses& lses, attn::i64 token, int head) {
  float maximum = kNegInf;
  for (int rank = 0; rank < lses.world_size; ++rank) {
    maximum = std::max(maximum, rank_lse(lses, rank, token, head));
  }
  if (maximum == kNegInf) return kNegInf;
  float sum = 0.0f;
  for (int rank = 0; rank < lses.world_size; ++rank) {
    sum += power(lses, rank_lse(lses, rank, token, head) - maximum);
  }
  return maximum + logarithm(lses, sum);
}

/// e^(lse_rank - combined), 0 where either is -inf.
float rank_weight(const attn::RankLses& lses, int rank, attn::i64 token, int head, float combined) {
  const float lse = rank_lse(lses, rank, token, head);
  return lse == kNegInf ? 0.0f : power(lses, lse - combined);
}

template <typename Params>
void store_combined_lse(const Params& params, attn::i64 token, int head, float lse) {
  if (params.output_lse == nullptr) return;
  params.output_lse[token * params.lse_token_stride + attn::i64{head} * params.lse_head_stride] =
      lse;
}

/// Where an output row begins, in elements.
attn::i64 output_place(const attn::DcpCombineParams& params, attn::i64 token, int head) {
  return token * params.output_token_stride + attn::i64{head} * params.output_head_stride;
}
attn::i64 output_place(const attn::DcpCorrectParams& params, attn::i64 token, int head) {
  const int heads = params.part_heads > 0 ? params.part_heads : params.num_heads;
  return attn::i64{head / heads} * params.output_part_stride + token * params.output_token_stride +
         attn::i64{head % heads} * params.output_head_stride;
}

template <typename Params>
void store_output(const Params& params, attn::i64 token, int head, const float* values) {
  store_row(params.output_element, values, params.head_size,
            element_at(params.output_element, params.output, output_place(params, token, head)));
}

/// This rank's share of the output: partial times weight. The sum over the ranks comes later.
void correct_row(const attn::DcpCorrectParams& params, attn::i64 token, int head, float* values) {
  const float lse = combined_lse(params.lses, token, head);
  const float weight = rank_weight(params.lses, params.rank, token, head, lse);
  if (weight == 0.0f) {
    std::fill_n(values, params.head_size, 0.0f);  // whatever the partial holds
  } else {
    const attn::i64 at =
        token * params.partial_token_stride + attn::i64{head} * params.partial_head_stride;
    load_wide_row(params.partial_element, element_at(params.partial_element, params.partial, at),
                  params.head_size, values);
    for (int d = 0; d < params.head_size; ++d) values[d] *= weight;
  }
  store_output(params, token, head, values);
  store_combined_lse(params, token, head, lse);
}

/// The output itself, from the partials of all ranks.
void combine_row(const attn::DcpCombineParams& params, attn::i64 token, int head, float* sum,
                 float* part) {
  const float lse = combined_lse(params.lses, token, head);
  std::fill_n(sum, params.head_size, 0.0f);
  for (int rank = 0; rank < params.lses.world_size; ++rank) {
    const float weight = rank_weight(params.lses, rank, token, head, lse);
    if (weight == 0.0f) continue;
    const attn::i64 at = rank * params.partial_rank_stride + token * params.partial_token_stride +
                         attn::i64{head} * params.partial_head_stride;
    load_wide_row(params.partial_element, element_at(params.partial_element, params.partial, at),
                  params.head_size, part);
    for (int d = 0; d < params.head_size; ++d) sum[d] += weight * part[d];
  }
  store_output(params, token, head, sum);
  store_combined_lse(params, token, head, lse);
}

}  // namespace

void correct_dcp(const attn::DcpCorrectParams& params, Workers& workers) {
  workers.pool.parallel_for(params.num_tokens, [&](std::int64_t token, int thread) {
    float* values =
        room_for(workers.scratch[static_cast<std::size_t>(thread)].line, params.head_size);
    for (int head = 0; head < params.num_heads; ++head) correct_row(params, token, head, values);
  });
}

void combine_dcp(const attn::DcpCombineParams& params, Workers& workers) {
  workers.pool.parallel_for(params.num_tokens, [&](std::int64_t token, int thread) {
    float* sum =
        room_for(workers.scratch[static_cast<std::size_t>(thread)].line, 2 * params.head_size);
    for (int head = 0; head < params.num_heads; ++head) {
      combine_row(params, token, head, sum, sum + params.head_size);
    }
  });
}

void sum_ranks(const attn::SumRanksParams& params, Workers& workers) {
  constexpr attn::i64 kTile = 4096;
  const attn::Element element = params.element;
  workers.pool.parallel_for((params.count + kTile - 1) / kTile, [&](std::int64_t tile, int thread) {
    const attn::i64 first = tile * kTile;
    const attn::i64 n = std::min(kTile, params.count - first);
    float* sum = room_for(workers.scratch[static_cast<std::size_t>(thread)].line, 2 * kTile);
    float* term = sum + kTile;
    load_wide_row(element, element_at(element, params.parts[0], first), n, sum);
    for (int rank = 1; rank < params.world_size; ++rank) {
      load_wide_row(element, element_at(element, params.parts[rank], first), n, term);
      for (attn::i64 i = 0; i < n; ++i) sum[i] += term[i];
    }
    store_row(element, sum, n, element_at(element, params.output, first));
  });
}

}  // namespace attnbench::cpu
