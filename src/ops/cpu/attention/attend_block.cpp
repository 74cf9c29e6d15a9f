// The steps of a tile, in the order in which attend_tile() takes them: keys to float32, S = Q K^T,
// transforms and mask, online softmax, values to float32, O += P V.
#include "ops/cpu/attention/attend_block.h"

#include <algorithm>
#include <cmath>
#include <limits>

#include "core/numbers/dtype.h"
#include "kernels/common/numeric.cuh"
#include "ops/cpu/attention/kv_tile.h"
#include "ops/cpu/attention/online_softmax.h"
#include "ops/cpu/attention/products.h"
#include "ops/cpu/attention/tile_scores.h"
#include "ops/cpu/quantise/fp8_code.h"
#include "ops/cpu/rows.h"

namespace attnbench::cpu {
namespace {

/// Whether no value is NaN or infinite.
bool all_finite(const float* values, std::int64_t count) {
  // Why: 0 * x is 0 for finite x and NaN for the rest, and a sum vectorises where a test does not.
  float sum = 0.0f;
  for (std::int64_t i = 0; i < count; ++i) sum += 0.0f * values[i];
  return sum == 0.0f;
}

/// Where the running sum of P V of (row, dim) lies; both layouts as Scratch::output says.
float* output_element(const attn::AttendParams& params, int row, int dim, Scratch& scratch) {
  return scratch.output.data() + (scratch.small ? std::int64_t{row} * params.v_head_size + dim
                                                : std::int64_t{dim} * scratch.row_stride + row);
}

/// Takes NaN and infinity out of the value tile and adds them to the rows that see their key only:
/// in a matrix product the zero weight of a masked key would turn them into NaN (§0.6.6).
void add_nonfinite_values(const attn::AttendParams& params, std::int64_t first_key, int keys,
                          Scratch& scratch) {
  const int width = params.v_head_size;
  for (int i = 0; i < keys; ++i) {
    for (int d = 0; d < width; ++d) {
      float& value = scratch.value[static_cast<std::size_t>(i * width + d)];
      if (std::isfinite(value)) continue;
      for (int r = 0; r < scratch.num_rows; ++r) {
        if (!is_visible(scratch, r, first_key + i)) continue;
        const float weight = scratch.scores[static_cast<std::size_t>(i * scratch.row_stride + r)];
        *output_element(params, r, d, scratch) += weight * value;
      }
      value = 0.0f;
    }
  }
}

/// S = Q K^T, by dot products for a few rows and by a matrix product for more.
void score_tile(const attn::AttendParams& params, int keys, Scratch& scratch) {
  if (scratch.small) {
    multiply_scores_small(scratch.query.data(), scratch.key.data(), scratch.num_rows, keys,
                          params.head_size, scratch.row_stride, scratch.scores.data());
  } else {
    multiply_scores(scratch.query.data(), scratch.key.data(), scratch.row_stride, keys,
                    params.head_size, scratch.scores.data());
  }
}

/// P as an e4m3 operand of P V (semantics §10.5): shifted by a power of two, so that probabilities
/// below the least code of e4m3 are not lost. l has been summed from P as it was.
void round_probabilities(int keys, Scratch& scratch) {
  read_back_e4m3_row(scratch.scores.data(), std::int64_t{keys} * scratch.row_stride,
                     attn::kE4M3ProbabilityShift);
}

/// O += P V, likewise.
void add_values(const attn::AttendParams& params, int keys, Scratch& scratch) {
  if (scratch.small) {
    accumulate_output_small(scratch.scores.data(), scratch.value.data(), scratch.num_rows, keys,
                            params.v_head_size, scratch.row_stride, scratch.output.data());
  } else {
    accumulate_output(scratch.scores.data(), scratch.value.data(), scratch.row_stride, keys,
                      params.v_head_size, scratch.output.data());
  }
}

/// Folds one tile into the state of the rows. Masking is skipped where every row sees every key,
/// which is the case of most tiles of a long context.
void attend_tile(const attn::AttendParams& params, const RowBlock& block, KeyRun tile,
                 TileVisibility visibility, Scratch& scratch) {
  const auto keys = static_cast<int>(tile.end - tile.begin);
  gather_keys(params, block.request, block.kv_head, tile.begin, tile.end, scratch);
  score_tile(params, keys, scratch);
  if (is_int8(params)) scale_int8_scores(params, block, tile, scratch);
  transform_scores(params.score, tile.begin, keys, scratch);
  if (visibility == TileVisibility::kSome) mask_scores(tile.begin, keys, scratch);
  fold_scores(keys, scratch);
  rescale_output(params.v_head_size, scratch);
  if (params.e4m3_probability != 0) round_probabilities(keys, scratch);
  gather_values(params, block.request, block.kv_head, tile.begin, tile.end, scratch);
  if (visibility == TileVisibility::kSome &&
      !all_finite(scratch.value.data(), std::int64_t{keys} * params.v_head_size)) {
    add_nonfinite_values(params, tile.begin, keys, scratch);
  }
  add_values(params, keys, scratch);
}

}  // namespace

void attend_block(const attn::AttendParams& params, const RowBlock& block, KeyRun run,
                  bool with_sink, Scratch& scratch) {
  scratch.reserve(params.head_size, params.v_head_size, params.score.num_mm_ranges);
  load_rows(params, block, with_sink, scratch);
  const float* channel_scale = params.int8.value_channel_scale;
  scratch.channel_scale = channel_scale == nullptr
                              ? nullptr
                              : channel_scale + std::int64_t{block.kv_head} * params.v_head_size;
  const KeyRun keys = visible_run(scratch, run);
  if (keys.begin >= keys.end) return;
  prepare_codes(params, block.kv_head, scratch);
  for (std::int64_t begin = keys.begin; begin < keys.end;) {
    // Tiles end at multiples of the tile, so that a window costs at most one ragged tile.
    const std::int64_t end = std::min(keys.end, (begin / kKeyTile + 1) * kKeyTile);
    const TileVisibility visibility = tile_visibility(scratch, begin, end);
    if (visibility != TileVisibility::kNone) {
      attend_tile(params, block, {begin, end}, visibility, scratch);
    }
    begin = end;
  }
}

float row_lse(const Scratch& scratch, int row) {
  const auto r = static_cast<std::size_t>(row);
  if (scratch.row_sum[r] == 0.0f) return -std::numeric_limits<float>::infinity();
  return scratch.row_max[r] + scratch.shift[r] + std::log(scratch.row_sum[r]);
}

void normalise_row(const attn::AttendParams& params, int row, Scratch& scratch) {
  const float sum = scratch.row_sum[static_cast<std::size_t>(row)];
  const float factor = sum == 0.0f ? 0.0f : 1.0f / sum;
  for (int d = 0; d < params.v_head_size; ++d) {
    scratch.line[static_cast<std::size_t>(d)] =
        scratch.output_at(row, d, params.v_head_size) * factor;
  }
  if (scratch.channel_scale == nullptr) return;
  for (int d = 0; d < params.v_head_size; ++d) {
    scratch.line[static_cast<std::size_t>(d)] *= scratch.channel_scale[d];
  }
}

void store_output_row(const attn::AttendParams& params, std::int64_t token, int head,
                      float* values) {
  if (params.output_scale > 0.0f) {
    // Why: the spec multiplies by the reciprocal; the conversion to e4m3 saturates.
    const float factor = 1.0f / params.output_scale;
    for (int d = 0; d < params.v_head_size; ++d) values[d] *= factor;
  }
  const attn::i64 offset = token * params.output_token_stride + head * params.output_head_stride;
  store_floats(static_cast<Dtype>(params.output_element), values, params.v_head_size,
               static_cast<char*>(params.output) + offset * element_size(params.output_element));
}

void store_lse(const attn::AttendParams& params, std::int64_t token, int head, float lse) {
  if (params.lse != nullptr) params.lse[head * params.lse_stride + token] = lse;
}

}  // namespace attnbench::cpu
