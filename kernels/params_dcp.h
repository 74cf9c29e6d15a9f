// Arguments of the operations that combine the partial results of the ranks of a decode-context
// parallel (DCP) group (semantics §7.3 to §7.5). Every rank holds a share of the keys and has
// attended to all query heads over its share; here the partials become one result by their LSEs.
// Moving data between ranks is the work of a communicator and does not happen here.
#pragma once

#include "kernels/params.h"

namespace attn {

/// LSEs of all ranks, gathered. NaN and +inf count as -inf: "no key was seen".
struct RankLses {
  const float* lse;  // [W, T, H] by the strides below
  i64 rank_stride;
  i64 token_stride;
  i64 head_stride;
  int world_size;  // W
  int base_two;    // 1: the LSEs are log2 of sums of powers of two; 0: natural
};

/// cp_lse_ag_out_rs steps 2 and 3: output = partial * e^(lse_rank - LSE) with
/// LSE = ln sum over ranks of e^lse; exactly 0 where the factor is 0, even if the partial is NaN.
/// The sum of the outputs of all ranks, formed by a reduce-scatter afterwards, is the attention
/// output.
struct DcpCorrectParams {
  RankLses lses;
  int rank;  // whose partial this is
  Element partial_element;
  const void* partial;  // [T, H, D]
  i64 partial_token_stride;
  i64 partial_head_stride;
  Element output_element;  // f32 where ranks are summed next: then the sum is rounded once
  void* output;            // [T, H, D]; may be `partial` when the elements and strides agree
  i64 output_token_stride;
  i64 output_head_stride;
  float* output_lse;  // LSE (token, head) by the strides below, in the base of lses; or null
  i64 lse_token_stride;
  i64 lse_head_stride;
  i64 num_tokens;  // T
  int num_heads;   // H: all heads of the group
  int head_size;   // D
  /// > 0: the output is cut into parts of so many heads, [H / part_heads, T, part_heads, D] by
  /// output_part_stride and the strides above, as a reduce-scatter sends them. 0: it is one.
  int part_heads;
  i64 output_part_stride;
};

/// dcp_a2a_lse_reduce after the exchange: output = sum over ranks of partial * e^(lse - LSE), in
/// f32 and in the order of the ranks, rounded once. A rank of weight 0 contributes exactly 0.
struct DcpCombineParams {
  RankLses lses;
  Element partial_element;
  const void* partial;  // [W, T, H, D]
  i64 partial_rank_stride;
  i64 partial_token_stride;
  i64 partial_head_stride;
  Element output_element;
  void* output;  // [T, H, D]
  i64 output_token_stride;
  i64 output_head_stride;
  float* output_lse;  // LSE (token, head) by the strides below, in the base of lses; or null
  i64 lse_token_stride;
  i64 lse_head_stride;
  i64 num_tokens;  // T
  int num_heads;   // H: the heads of the receiving rank
  int head_size;   // D
};

/// Weights that fit into the shared memory of a CTA of correct_dcp and combine_dcp: 8 KiB of f32,
/// one for each rank of each of its rows.
constexpr int kDcpWeightsOfCta = 2048;
/// Heads of such a CTA, of `tokens` tokens each: as many as have a thread for each of their
/// `row_vectors` vectors, and as many as it has weights for; at least one, whose remaining vectors
/// are then the work of other CTAs. The host sizes the grid with the same function.
ATTN_FN int dcp_heads_of_cta(int row_vectors, int world_size, int tokens, int threads) {
  const int by_threads = threads / row_vectors;
  const int by_weights = kDcpWeightsOfCta / (world_size * tokens);
  const int heads = by_threads < by_weights ? by_threads : by_weights;
  return heads < 1 ? 1 : heads;
}

/// Ranks whose buffers one sum_ranks() can name; `output` may be the first of them. Their addresses
/// are part of the struct, because a kernel parameter is in constant memory already when the kernel
/// starts.
constexpr int kMostSummedRanks = 64;

/// output[i] = sum over ranks of parts[rank][i], in f32 and in the order of the ranks, rounded
/// once. The first term is not added to a zero: a world of one rank returns its input bit for bit,
/// -0 included.
struct SumRanksParams {
  Element element;                      // f32, f16 or bf16
  int world_size;                       // <= kMostSummedRanks
  const void* parts[kMostSummedRanks];  // [count] each
  void* output;                         // [count]
  i64 count;
};

}  // namespace attn
