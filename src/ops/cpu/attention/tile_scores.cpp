// Everything between the product Q K^T and the softmax, one tile at a time. Loops run over the rows
// of a key, which lie next to each other in scratch.scores, so that the compiler makes vector code.
#include "ops/cpu/attention/tile_scores.h"

#include <algorithm>
#include <cmath>

#include "core/error.h"
#include "ops/cpu/attention/fast_exp.h"

namespace attnbench::cpu {
namespace {

/// To a few ulp everywhere; written so that loops over it become vector code.
float fast_tanh(float x) {
  const float magnitude = std::fabs(x);
  const float e = exp_nonpositive(-2.0f * magnitude);
  const float far = std::copysign((1.0f - e) / (1.0f + e), x);
  // Near 0 the formula above cancels; x + x^3 q(x^2) with the minimax q of Cephes' tanhf.
  const float square = x * x;
  float q = mul_add(square, -5.70498872745e-3f, 2.06390887954e-2f);
  q = mul_add(q, square, -5.37397155531e-2f);
  q = mul_add(q, square, 1.33314422036e-1f);
  q = mul_add(q, square, -3.33332819422e-1f);
  const float near = mul_add(q * square, x, x);
  return magnitude < 0.625f ? near : far;
}

/// scores [count] <- cap * tanh(scores / cap) (§3.1 step 2).
void soft_cap(float cap, std::int64_t count, float* scores) {
  const float inverse = 1.0f / cap;
  for (std::int64_t i = 0; i < count; ++i) scores[i] = cap * fast_tanh(scores[i] * inverse);
}

/// scores [rows] += bias of one key; `distance_of` maps p to the ALiBi distance (§3.4).
template <typename Distance>
void add_bias(const Distance& distance_of, const Scratch& scratch, float* scores) {
  const std::int32_t* position = scratch.position.data();
  const float* slope = scratch.slope.data();
  for (int r = 0; r < scratch.num_rows; ++r) scores[r] += slope[r] * distance_of(position[r]);
}

/// Linear forms are taken relative to the row's own position; scratch.shift is the rest.
void add_alibi(attn::Alibi form, int key, const Scratch& scratch, float* scores) {
  switch (form) {
    case attn::Alibi::kNone:
      return;
    case attn::Alibi::kKeyIndex:
    case attn::Alibi::kContextRelative:
      return add_bias([&](int p) { return static_cast<float>(key - p); }, scratch, scores);
    case attn::Alibi::kDistance:
      return add_bias([&](int p) { return -std::fabs(static_cast<float>(p - key)); }, scratch,
                      scores);
    case attn::Alibi::kGlobalKeyIndex:
    case attn::Alibi::kGlobalDistance:
    case attn::Alibi::kGlobalSqrt:
      fail(ErrorKind::kInternal, "a global form of ALiBi where a local one belongs");
    case attn::Alibi::kSqrt:
      return add_bias([&](int p) { return -std::sqrt(static_cast<float>(p > key ? p - key : 0)); },
                      scratch, scores);
  }
}

/// Scale of the key at position `key` of the block's request and KV head.
float key_scale(const attn::KvParams& kv, const RowBlock& block, std::int64_t key) {
  const attn::i64 page =
      kv.block_table[block.request * kv.block_table_stride + key / kv.block_size];
  return kv.key_scales[page * kv.scale_block_stride + (key % kv.block_size) * kv.scale_slot_stride +
                       block.kv_head * kv.scale_head_stride];
}

}  // namespace

TileVisibility tile_visibility(const Scratch& scratch, std::int64_t begin, std::int64_t end) {
  bool all = true;
  bool some = false;
  for (int r = 0; r < scratch.num_rows; ++r) {
    const auto row = static_cast<std::size_t>(r);
    bool covered = false;
    for (int k = 0; k < scratch.num_intervals; ++k) {
      const KeyInterval& interval = scratch.intervals[static_cast<std::size_t>(k)];
      covered = covered || (interval.begin[row] <= begin && end <= interval.end[row]);
      some = some || (interval.begin[row] < end && begin < interval.end[row] &&
                      interval.begin[row] < interval.end[row]);
    }
    all = all && covered;
  }
  if (all) return TileVisibility::kAll;
  return some ? TileVisibility::kSome : TileVisibility::kNone;
}

bool is_visible(const Scratch& scratch, int row, std::int64_t key) {
  for (int k = 0; k < scratch.num_intervals; ++k) {
    const KeyInterval& interval = scratch.intervals[static_cast<std::size_t>(k)];
    const auto r = static_cast<std::size_t>(row);
    if (interval.begin[r] <= key && key < interval.end[r]) return true;
  }
  return false;
}

void transform_scores(const attn::ScoreParams& score, std::int64_t first_key, int keys,
                      Scratch& scratch) {
  float* scores = scratch.scores.data();
  const std::int64_t count = std::int64_t{keys} * scratch.row_stride;
  if (score.soft_cap > 0.0f) soft_cap(score.soft_cap, count, scores);
  if (score.alibi == attn::Alibi::kNone) return;
  const attn::Alibi form = attn::local_form(score.alibi);
  for (int i = 0; i < keys; ++i, scores += scratch.row_stride) {
    const int key = static_cast<int>(first_key) + i;
    const bool is_global = attn::is_global(score.alibi);
    add_alibi(form,
              is_global ? attn::global_key(score.positions, scratch.first_key_index + key) : key,
              scratch, scores);
  }
}

void mask_scores(std::int64_t first_key, int keys, Scratch& scratch) {
  const int rows = scratch.num_rows;
  for (int i = 0; i < keys; ++i) {
    float* scores = scratch.scores.data() + std::int64_t{i} * scratch.row_stride;
    const int key = static_cast<int>(first_key) + i;
    if (scratch.num_intervals == 1) {
      const std::int32_t* begin = scratch.intervals[0].begin.data();
      const std::int32_t* end = scratch.intervals[0].end.data();
      for (int r = 0; r < rows; ++r) {
        const bool visible = (begin[r] <= key) & (key < end[r]);
        scores[r] = visible ? scores[r] : kNegInf;
      }
    } else {
      for (int r = 0; r < rows; ++r) {
        if (!is_visible(scratch, r, key)) scores[r] = kNegInf;
      }
    }
  }
}

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
