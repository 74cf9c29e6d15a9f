// One step of the decode kernel (decode.cuh): what 16 keys and values do to the state and the
// output of the rows, by the format in which they are stored.
#pragma once

#include "kernels/attention/decode/loads.cuh"
#include "kernels/attention/products.cuh"

namespace attn {

template <class Config, class Part>
struct DecodeProducts : DecodeLoads<Config, Part> {
  using Loads = DecodeLoads<Config, Part>;
  using Loads::head;
  using Loads::kCells;
  using Loads::kCodes;
  using Loads::kColumnBlocks;
  using Loads::kDepth;
  using Loads::key;
  using Loads::kHoldValues;
  using Loads::kKeyBlocks;
  using Loads::kKeys;
  using Loads::kLayout;
  using Loads::kPitch;
  using Loads::kValueBytes;
  using Loads::kValueCodes;
  using Loads::kValuePitch;
  using Loads::lane;
  using Loads::rows_of_warp;
  using Loads::shift_of;
  using Loads::stage;
  using Loads::sync_head;
  using Loads::thread;
  using Loads::value;
  using typename Loads::Format;
  using typename Loads::Output;
  using typename Loads::Place;
  using typename Loads::RowScale;
  using typename Loads::Shift;
  using typename Loads::State;

  float key_factor;  // key_scale(), value_scale()
  float value_factor;

  /// From the first head of a step to that of this warp.
  __device__ u32 head_offset(int columns) const { return head() * (columns + kCellScaleBytes); }

  /// NaN and infinity in a step with masked keys: added to the rows that see them, then cleared. By
  /// the warps of a head, which all find the same; int8 values have neither.
  template <class Values>
  __device__ void settle_nonfinite(int key_at, unsigned char* tile_of_values, const Values& values,
                                   Output& o) {
    constexpr Element kStored = kValueCodes ? kStoredValue<Config> : Format::kValue;
    if constexpr (kStored == Element::kI8) return;
    constexpr int kBytes = Config::kVHeadSize * kValueBytes;
    if constexpr (Config::kHeads > 1) tile_of_values += head_offset(Config::kVHeadSize);
    const Shift shift = shift_of(value);
    if (!__any_sync(0xFFFFFFFFu, find_nonfinite<kStored, kBytes, kValuePitch>(tile_of_values, kKeys,
                                                                              lane, 32, shift))) {
      return;
    }
    if constexpr (Config::kTransposed) {
      accumulate_nonfinite_columns<Format::kValue>(rows_of_warp(), key_at, values, o[0]);
    } else {
      accumulate_nonfinite<Format::kValue, kKeys / 8>(rows_of_warp(), key_at, values, o);
    }
    sync_head();
    clear_nonfinite<kStored, kBytes, kValuePitch>(
        tile_of_values, kKeys, thread % (Config::kRowWarps * 32), Config::kRowWarps * 32, shift);
    sync_head();
  }

  /// One step of 16 keys from its operands: S = Q @ K^T, scale, mask, P = 2^(S - base), O += P @ V.
  template <class Query, class Keys, class Values, class Scales>
  __device__ void attend_step(int step, int key_at, bool masked, const Query& query,
                              const Keys& keys, const Values& values, const Scales& key_scales,
                              const Scales& value_scales, const ScoreScale& scale,
                              const RowScale& row_scale, State& state, Output& o) {
    float s[Config::kRowBlocks][kKeyBlocks][4];
    if (masked) settle_nonfinite(key_at, stage(step) + kLayout.value, values, o);
    const Choose<kHoldValues, HeldValues<Values, kColumnBlocks>, const Values&> held(values);
    if constexpr (Format::kInt8 && Config::kTransposed) {
      multiply_int8_keys<kDepth / 32>(query, keys, s[0][0]);
    } else if constexpr (Format::kInt8) {
      multiply_int8_scores<kDepth / 32>(query, keys, s);
    } else if constexpr (Config::kTransposed) {
      multiply_keys<Format::kScore, kDepth / 16>(query, keys, s[0][0]);
    } else {
      multiply_scores<Format::kScore, kDepth / 16>(query, keys, s);
    }
    if constexpr (Format::kKeyScales) scale_columns(s, key_scales);
    if constexpr (Config::kScaleFirst) {
      if constexpr (kCodes) scale_rows(s, row_scale);
      transform_scores<Config, Place>(s, rows_of_warp(), key_at, scale);
    }
    if (masked) mask_keys<Place>(s, rows_of_warp(), key_at, kNegInf);
    if constexpr (Config::kScaleFirst) {
      fold_scores<Format::kTokenHeadScales, Place>(s, SameFactor{1.0f}, state, o);
    } else {
      fold_scores<Format::kTokenHeadScales, Place>(s, row_scale, state, o);
    }
    if constexpr (Format::kTokenHeadScales) {
      if (masked) {
        scale_weights<true, Place>(s, rows_of_warp(), key_at, value_scales, state, o);
      } else {
        scale_weights<false, Place>(s, rows_of_warp(), key_at, value_scales, state, o);
      }
    }
    if constexpr (Config::kTransposed) {
      accumulate_columns<Format::kValue>(s[0][0], held, o[0]);
    } else {
      accumulate_values<Format::kValue>(s, held, o);
    }
  }

  /// The same from a tile of codes: rows start on their pitch or, in cells, a little behind it.
  template <class Query>
  __device__ void attend_codes(int step, int key_at, bool masked, const Query& query,
                               const ScoreScale& scale, const RowScale& row_scale, State& state,
                               Output& o) {
    u32 at = shared_address(stage(step));
    u32 value_at = at + kLayout.value;
    if constexpr (Config::kHeads > 1) {
      at += head_offset(Config::kHeadSize);
      value_at += head_offset(Config::kVHeadSize);
    }
    const int row = lane / 4;
    const int pair = lane % 4 * 2;
    const Shift key_shift = shift_of(key);
    const Shift value_shift = shift_of(value);
    const CodeKeys<Config::kKeyValue, Format::kScore, Format::kScaled, kPitch> keys{
        at + row * kPitch + key_shift.of(row) + lane % 4 * 4, key_factor};
    const u32 value_row = value_at + pair * kValuePitch + value_shift.of(pair);
    const u32 odd_value = kValuePitch + value_shift.of(pair + 1) - value_shift.of(pair);
    const CodeValues<Config::kKeyValue, Format::kValue, Format::kScaled, kValuePitch> values{
        value_row + row * 4, odd_value, value_factor};
    if constexpr (kCells) {
      const int first = Place::key(0, 0);
      const int second = Place::key(0, 1);
      const CellScales<kPitch> key_scales{
          at + first * kPitch + key_shift.of(first) + Config::kHeadSize,
          (second - first) * kPitch + key_shift.of(second) - key_shift.of(first)};
      const CellScales<kValuePitch> value_scales{
          value_at + first * kValuePitch + value_shift.of(first) + Config::kVHeadSize,
          (second - first) * kValuePitch + value_shift.of(second) - value_shift.of(first)};
      attend_step(step, key_at, masked, query, keys, values, key_scales, value_scales, scale,
                  row_scale, state, o);
    } else {
      const auto* scales = reinterpret_cast<const float*>(stage(step) + kLayout.scales);
      attend_step(step, key_at, masked, query, keys, values, RowOfScales<Place>{scales},
                  RowOfScales<Place>{scales + kKeys}, scale, row_scale, state, o);
    }
  }

  /// The same from a tile of int8 keys, whose products take them as they are, and one of values.
  template <class Query>
  __device__ void attend_int8(int step, int key_at, bool masked, const Query& query,
                              const ScoreScale& scale, const RowScale& row_scale, State& state,
                              Output& o) {
    static_assert(kDepth % 32 == 0);
    const u32 at = shared_address(stage(step));
    const u32 value_at = at + kLayout.value;
    const TileKeys<kPitch> keys{columns_first_address<kPitch>(at)};
    const auto* scales = reinterpret_cast<const float*>(stage(step) + kLayout.scales);
    const RowOfScales<Place> key_scales{scales};
    if constexpr (kValueCodes) {
      const CodeValues<Element::kI8, Format::kValue, false, kValuePitch> values{
          value_at + lane % 4 * 2 * kValuePitch + lane / 4 * 4, kValuePitch, 1.0f};
      attend_step(step, key_at, masked, query, keys, values, key_scales, key_scales, scale,
                  row_scale, state, o);
    } else {
      const TileValues<kValuePitch> values{rows_first_address<kValuePitch>(value_at)};
      attend_step(step, key_at, masked, query, keys, values, key_scales, key_scales, scale,
                  row_scale, state, o);
    }
  }

  /// The same from a 16-bit tile; there are no scales to give.
  template <class Query>
  __device__ void attend_tiles(int step, int key_at, bool masked, const Query& query,
                               const ScoreScale& scale, const RowScale& row_scale, State& state,
                               Output& o) {
    const u32 at = shared_address(stage(step));
    const TileKeys<kPitch> keys{columns_first_address<kPitch>(at)};
    const TileValues<kValuePitch> values{rows_first_address<kValuePitch>(at + kLayout.value)};
    attend_step(step, key_at, masked, query, keys, values, RowOfScales<Place>{nullptr},
                RowOfScales<Place>{nullptr}, scale, row_scale, state, o);
  }

  /// The same in the format of the step's tile.
  template <class Query>
  __device__ void attend(int step, int key_at, bool masked, const Query& query,
                         const ScoreScale& scale, const RowScale& row_scale, State& state,
                         Output& o) {
    if constexpr (Format::kInt8) {
      attend_int8(step, key_at, masked, query, scale, row_scale, state, o);
    } else if constexpr (kCodes) {
      attend_codes(step, key_at, masked, query, scale, row_scale, state, o);
    } else {
      attend_tiles(step, key_at, masked, query, scale, row_scale, state, o);
    }
  }
};

}  // namespace attn
