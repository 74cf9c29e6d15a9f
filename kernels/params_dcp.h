// Arguments of the operations that combine the partial results of the ranks of a decode-context
// group (semantics §7.3 to §7.5). What moves between ranks is the work of a communicator.
#pragma once

#include "kernels/params.h"

namespace attn {

/// LSEs of all ranks, gathered. NaN and +inf count as -inf: "no key was seen".
struct RankLses {
  const float* lse;  // (rank, token, head) by the strides below
  i64 rank_stride;
  i64 token_stride;
  i64 head_stride;
  int world_size;  // W
  int base_two;    // 1: the LSEs are log2 of sums of powers of two; 0: natural
};

/// cp_lse_ag_out_rs steps 2 and 3: output = partial * e^(lse_rank - LSE) with
/// LSE = ln sum over ranks of e^lse; exactly 0 where the factor is 0.
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

/// Weights that a CTA of correct_dcp and combine_dcp has place for, a rank and row each.
constexpr int kDcpWeightsOfCta = 2048;
/// Rows (token, head) of such a CTA, which has `slots` places for the `row_vectors` of a row.
ATTN_FN int dcp_rows_of_cta(int row_vectors, int world_size, int slots) {
  const int by_slots = slots / row_vectors;
  const int by_weights = kDcpWeightsOfCta / world_size;
  const int rows = by_slots < by_weights ? by_slots : by_weights;
  return rows < 1 ? 1 : rows;
}

/// Ranks whose buffers one sum_ranks() can name.
constexpr int kMostSummedRanks = 64;

/// output[i] = sum over ranks of parts[rank][i], in f32 and in the order of the ranks, rounded
/// once. The first term is taken as it is: one rank alone gets back its bits.
struct SumRanksParams {
  Element element;                      // f32, f16 or bf16
  int world_size;                       // <= kMostSummedRanks
  const void* parts[kMostSummedRanks];  // [count] each
  void* output;                         // [count]
  i64 count;
};

}  // namespace attn
