#include "ops/cpu/attention/int8_scores.h"

#include <algorithm>

namespace attnbench::cpu {
namespace {

float key_scale(const attn::KvParams& kv, const RowBlock& block, std::int64_t key) {
  const attn::i64 page =
      kv.block_table[block.request * kv.block_table_stride + key / kv.block_size];
  return kv.key_scales[page * kv.scale_block_stride + (key % kv.block_size) * kv.scale_slot_stride +
                       block.kv_head * kv.scale_head_stride];
}

}  // namespace

void load_query_scales(const attn::AttendParams& params, const RowBlock& block, Scratch& scratch) {
  const attn::Int8ScoreParams& int8 = params.int8;
  std::fill_n(scratch.row_scale.begin(), scratch.row_stride, 0.0f);
  for (int r = 0; r < block.num_rows; ++r) {
    const RowPlace place = place_of_row(params, block, r);
    scratch.row_scale[static_cast<std::size_t>(r)] =
        int8.query_scale[place.token * int8.query_scale_token_stride +
                         place.head * int8.query_scale_head_stride];
  }
}

void scale_int8_scores(const attn::AttendParams& params, const RowBlock& block, KeyRun tile,
                       Scratch& scratch) {
  const float* row_scale = scratch.row_scale.data();
  const float softmax_scale = params.score.softmax_scale;
  float* scores = scratch.scores.data();
  for (std::int64_t key = tile.begin; key < tile.end; ++key, scores += scratch.row_stride) {
    const float k_s = key_scale(params.kv, block, key);
    // s = (softmax_scale * (q_s * k_s)) * S
    for (int r = 0; r < scratch.row_stride; ++r) scores[r] *= softmax_scale * (row_scale[r] * k_s);
  }
}

}  // namespace attnbench::cpu
