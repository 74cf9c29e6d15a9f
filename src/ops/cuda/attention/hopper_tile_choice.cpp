#include "ops/cuda/attention/hopper_tile_choice.h"

#include <algorithm>
#include <array>
#include <span>

#include "ops/cuda/vector_choice.h"

namespace attnbench::cuda {
namespace {

/// Measured on one NVIDIA H200, 2026-11-22, with standalone experiments, bf16; TFLOP/s at 8k / 16k.
/// Three consumers have 160 registers a thread, two have 240: O, S and P (Dv / 2, tile_n / 2 and
/// tile_n / 4 of them) must leave 16 of these for the rest.
constexpr std::array kHopperTiles = {
    // 64 columns: 192 x 128 578 / 606 causal; there the softmax takes as long as the products, and
    // turns keep the warpgroups from doing the same thing at the same time.
    TileChoice{64, 64, 3, 128, true, "the widest that three consumers hold"},
    // Not measured: 80 columns, of encoders. S of 112 keys beside O takes 124 registers with P, 128
    // keys spill. The softmax takes four fifths of the products' time: turns, as with 64.
    TileChoice{80, 80, 3, 112, true, "the widest that three consumers hold", 2, 128},
    // Not measured: S of 96 keys beside O of 96 columns takes 120 registers with P.
    TileChoice{128, 96, 3, 96, false, "the widest that three consumers hold"},
    // 128 columns: 192 x 80 783 / 819 causal and 788 / 826 full, 128 x 128 731 / 759 and 753 / 755:
    // 192 rows read a third less of the L2.
    TileChoice{192, 128, 3, 80, false, "the widest that three consumers hold"},
    // 256 columns: 128 x 64 803 / 833 causal, 827 / 831 full; O alone takes 128 registers.
    TileChoice{256, 256, 2, 64, false, "the output takes most of the registers of two consumers"},
};
/// Up to so many packed rows of a request two consumers are taken where they leave so many fewer
/// rows empty that it pays: a row by them takes so many times as long.
constexpr std::int64_t kShortRows = 1024;
struct ShortTile {
  TileChoice tile;
  double cost;
};
constexpr const char* kShortReason = "192 rows a tile would leave too many of the last one empty";
constexpr std::array kShortTiles = {
    // 64 requests of 512 tokens and their 2,048 packed rows, D128: 753 us and 601 us.
    ShortTile{{128, 128, 2, 128, false, kShortReason}, 1.25},
    // Narrow enough for a second place of queries. Full attention of 32 heads, contiguous, one
    // NVIDIA H200, 2026-11-30: 64 requests of 512 tokens 605 us, 128 x 128 in turns 671, 192 x 80
    // 716; 32 of 1,024 1064, 1071 and 1111; 8 of 2,048 1013, 970 and 953.
    ShortTile{{.most_columns = 192,
               .most_v_columns = 128,
               .consumers = 2,
               .tile_n = 64,
               .ping_pong = false,
               .reason = kShortReason,
               .stages = 3,
               .late_output = true},
              1.08},
};

/// Windows of an encoder: up to so many rows of keys of their own, which no other rows see, three
/// CTAs of one consumer share a multiprocessor, and each brings the keys of its next window while
/// it computes this one. Why: a window of 64 tokens is two products and 40 KB, and its time is that
/// of waiting for memory. Small images are the same as long as there are few of them: the more rows
/// of one image a CTA has, the fewer multiprocessors have work. Images of 65 to 80 columns only
/// while all fit at once, and where the next queries can be loaded ahead, which 72 columns do
/// not allow: four of 1,024 patches and 80 columns 75 us, 59 by ImageTile; one of 784 and one of
/// 308 and 72 columns 33 and 22, four of 784 90 and 52 (one NVIDIA H200, 2026-12-01).
constexpr std::int64_t kWindowRows = 256;
constexpr std::int64_t kFewTiles = 1024;  // of 64 rows
constexpr std::int64_t kFewImageTiles = 400;
constexpr TileChoice kWindowTile{
    96, 96, 1, 64, false, "of few rows with keys of their own, several at a time", 2, 64, true};

/// Images of 65 to 80 columns that are not that small, up to so many patches: what takes less time
/// by rounds of the multiprocessors of an H200 and steps of a row tile over its keys. 16 heads, one
/// NVIDIA H200, 2026-12-01, by 128 and 192 rows: 80 columns, one of 1,600 47 and 57 us, four of
/// 1,024 59 and 66, one of 2,116 80 and 70, one of 3,136 143 and 133; 72 columns, one of 784 and
/// one of 308 30 and 22, two of 1,024 40 and 47, one of 1,296 43 and 31, two of 1,600 92 and 78.
constexpr std::int64_t kMostImageRows = 4096;
constexpr std::int64_t kImageMultiprocessors = 132;
struct ImageTile {
  TileChoice tile;
  double start;  // us of a launch
  double step;   // us of a row tile over tile_n keys, all multiprocessors at work
};
constexpr std::array kImageTiles = {
    ImageTile{{80, 80, 3, 112, true, "the widest that three consumers hold", 2, 128}, 14.7, 1.41},
    ImageTile{
        {80, 80, 2, 128, true, "fewer rows are left over by tiles of 128", 2, 128}, 13.4, 1.3},
};

/// Of e4m3 products, where P takes tile_n / 8 registers. Sums of the values' products lie beside
/// the output, as many columns as HopperPlan::sums says, or tile_n / 2 up to 64 without it; with
/// `apart` they take the registers of the scores, and the tile may be wider. Measured on one NVIDIA
/// H200 over pages, TFLOP/s of two requests of 8,192 tokens / one of 16,384: 2026-11-30 where there
/// is an `apart` (in turns, in one call), else 2026-11-28.
constexpr std::array kCodeTiles = {
    // - / 621, by pieces of 32 columns (192 x 128) - / 581; 192 x 160 - / 552, 192 x 128 540.
    TileChoice{64, 64, 3, 192, true, "the widest that three consumers hold, sums after scores", 2,
               0, false, 0, true, true},
    TileChoice{64, 64, 3, 128, false, "the widest that three consumers hold beside sums of pieces",
               3, 0, false, 32, true},
    TileChoice{64, 64, 3, 96, true, "the widest that three consumers hold beside two sums", 3},
    // An encoder of 80 columns and 16,384 patches, contiguous, with quantising: 2020 us, by pieces
    // (192 x 96) 2225; 192 x 128 2128, 192 x 192 2148.
    TileChoice{80, 80, 3, 160, true, "the widest that three consumers hold, sums after scores", 2,
               0, false, 0, true, true},
    // With a step for every stage 850 / 937, without 816 / 905; 192 x 96 821 / 894, by pieces
    // (192 x 96, each warpgroup at its own pace) 768 / 849.
    TileChoice{128, 128, 3, 128, true, "the widest that three consumers hold, sums after scores", 2,
               0, false, 0, true, true},
    TileChoice{128, 128, 3, 96, false, "the widest that three consumers hold beside sums of pieces",
               2, 0, false, 32, true},
    TileChoice{256, 128, 2, 96, true, "the widest that two consumers hold beside two sums", 3},
    // 884 / 959, before 842 / 918; apart - / 941.
    TileChoice{256, 256, 2, 96, false, "the widest that two consumers hold beside sums of pieces",
               2, 0, false, 32, true},
    TileChoice{256, 256, 2, 64, false, "the output takes most of the registers of two consumers",
               3},
};
/// With attention.fp8_accumulation: fast, without a second sum.
constexpr std::array kFastCodeTiles = {
    // - / 605, in turns 563; 896 / 976, with three stages 904 / 995, 128 x 192 in turns - / 848.
    TileChoice{64, 64, 3, 128, false, "lines of 128 keys, and registers for three consumers", 3, 0,
               false, 0, true},
    TileChoice{128, 128, 3, 96, false, "the widest that three consumers hold", 3, 0, false, 0,
               true},
    TileChoice{192, 128, 2, 192, true, "wide enough for copies and barriers to be few"},
    TileChoice{256, 256, 2, 96, false, "the widest that shared memory holds"},
};
/// Of 16-bit queries over codes, whose tiles lie in shared memory twice.
constexpr std::array kConvertedTiles = {
    TileChoice{64, 64, 3, 96, true, "the widest that three consumers hold"},
    TileChoice{128, 128, 3, 80, false, "the widest that three consumers hold"},
    TileChoice{192, 128, 2, 80, false, "the widest that shared memory holds"},
    TileChoice{256, 256, 2, 48, false, "the widest that shared memory holds"},
};
/// Of int8 scores. Registers are those of 16-bit products, and so are the tiles, of which others
/// were not measured; products of scores take half the time of these. Why no turns and three stages
/// of 64 columns: is_narrow_int8_prompt() in hopper_plan.cpp.
constexpr std::array kInt8Tiles = {
    TileChoice{64, 64, 3, 128, false, "the widest that three consumers hold", 3},
    TileChoice{128, 96, 3, 96, false, "the widest that three consumers hold"},
    TileChoice{192, 128, 3, 80, false, "the widest that three consumers hold"},
    TileChoice{256, 256, 2, 64, false, "the output takes most of the registers of two consumers"},
};
/// Of e4m3 scores whose weights keep 16 bits. One NVIDIA H200, 2026-12-01, one request of 16,384
/// tokens: 128 columns 2788 us, in turns 2841, 128 x 160 3224; 64 columns 1940, 128 x 160 2370; 256
/// columns 8159, without turns 8342. An image of 16,384 patches of 80 columns 3150, without turns
/// 3231, by 112 keys 3187.
constexpr std::array kWideTiles = {
    TileChoice{64, 64, 3, 128, true, "the widest that three consumers hold"},
    TileChoice{80, 96, 3, 96, true, "the widest that three consumers hold"},
    TileChoice{128, 96, 3, 96, false, "the widest that three consumers hold"},
    TileChoice{192, 128, 3, 80, false, "the widest that three consumers hold"},
    TileChoice{256, 256, 2, 64, true, "the output takes most of the registers of two consumers"},
};
/// And of windows. Windows of 64 patches of 80 columns, 22, 130 and 256 of them: 14, 45 and 74 us;
/// by 80 keys, two CTAs on a multiprocessor, 21, 60 and 108, 192 x 96 24, 104 and 200 (2026-12-01).
constexpr TileChoice kWideWindowTile{96, 96, 1, 64, false, kWindowTile.reason};
/// Of decodes: one consumer, two CTAs on a multiprocessor. Not measured. What bounds it is memory:
/// of 64 keys of 128 columns 16 KB come, and 64 rows of them, few of which exist, take 384 clocks
/// of the tensor cores.
constexpr TileChoice kInt8DecodeTile{256, 256, 1, 64, false, "of no more than 64 rows", 2};

/// Columns that encoders have and that fill no line.
bool has_image_columns(const attn::AttendParams& params) {
  return params.head_size > 64 && params.head_size <= kImageColumns &&
         params.v_head_size <= kImageColumns;
}
/// Row tiles that have rows: a launch has as many for every request as the longest one needs.
std::int64_t num_tiles_with_rows(const attn::AttendParams& params, int rows) {
  const std::int64_t most = num_row_tiles(params, rows, 1);
  if (params.num_query_tokens == 0) return most;
  const int group = params.num_heads / params.num_kv_heads;
  const std::int64_t packed = ceil_quotient(params.num_query_tokens * group, rows);
  return std::min(most, packed * params.num_kv_heads);
}
/// As few rows as kWindowTile is for.
bool has_short_sequences(const attn::AttendParams& params) {
  if (params.batch_invariant != 0 || is_paged(params) || is_causal(params)) return false;
  const std::int64_t rows = max_packed_rows(params);
  if (rows <= kWindowRows) return true;
  const bool is_image = has_image_columns(params) && key_bytes(params) == 2;
  if (is_image && !hopper_ahead_misfit(params).empty()) return false;
  return rows <= kShortRows && num_tiles_with_rows(params, attn::kConsumerRows) <=
                                   (is_image ? kFewImageTiles : kFewTiles);
}
/// Whether kImageTiles has been measured for it.
bool is_image(const attn::AttendParams& params) {
  return params.batch_invariant == 0 && !is_paged(params) && !is_causal(params) &&
         !has_window(params) && has_image_columns(params) &&
         params.num_heads == params.num_kv_heads && max_packed_rows(params) <= kMostImageRows;
}
const TileChoice& image_tile(const attn::AttendParams& params) {
  const auto time_of = [&](const ImageTile& image) {
    const std::int64_t tiles =
        num_tiles_with_rows(params, image.tile.consumers * attn::kConsumerRows);
    const std::int64_t steps = ceil_quotient(keys_of_request(params), image.tile.tile_n);
    return image.start +
           image.step * static_cast<double>(ceil_quotient(tiles, kImageMultiprocessors) * steps);
  };
  return time_of(kImageTiles[1]) < time_of(kImageTiles[0]) ? kImageTiles[1].tile
                                                           : kImageTiles[0].tile;
}
bool has_columns_of(const TileChoice& tile, const attn::AttendParams& params) {
  return params.head_size <= tile.most_columns && params.v_head_size <= tile.most_v_columns;
}

/// The first that fits, or the last.
const TileChoice& first_tile(std::span<const TileChoice> tiles, const attn::AttendParams& params,
                             bool scales_first, bool may_be_apart = false) {
  const auto fits = [&](const TileChoice& tile) {
    // Why: what transforms scores takes registers too; 112 keys of three consumers would spill,
    // beside two sums 96, and beside sums of pieces any.
    const int least_spilling = has_e4m3_products(params) ? 96 : 112;
    const bool has_room =
        !scales_first || (tile.sums == 0 && (tile.consumers == 2 || tile.tile_n < least_spilling));
    // Why pages: of ragged rows 192 x 96 spill up to 284 bytes beside 128 columns, and 64 have not
    // been measured. Nor have windows, ranges and short images, with the wider tiles of `apart`; in
    // windows 192 x 128 spill 340 bytes beside 128 columns.
    const bool has_pieces =
        is_paged(params) || (params.v_head_size > 64 && params.v_head_size <= 96);
    if (tile.sums > 0 && !(has_pieces && divides_columns(params, tile.sums))) return false;
    const bool is_plain = !scales_first && !has_window(params) && !has_short_sequences(params) &&
                          params.score.mm_ranges == nullptr;
    if (tile.apart && !(may_be_apart && has_pieces && is_plain && params.v_head_size >= 64)) {
      return false;
    }
    return has_room && params.head_size <= tile.most_columns &&
           params.v_head_size <= tile.most_v_columns;
  };
  return *std::find_if(tiles.begin(), tiles.end() - 1, fits);
}

}  // namespace

bool is_causal(const attn::AttendParams& params) { return params.score.window_right >= 0; }

bool has_window(const attn::AttendParams& params) { return params.score.window_left >= 0; }
std::int64_t keys_of_request(const attn::AttendParams& params) {
  return std::max({params.max_seq_len, params.max_query_len, 1});
}
std::int64_t keys_of_row(const attn::AttendParams& params) {
  const attn::ScoreParams& score = params.score;
  const std::int64_t keys = keys_of_request(params);
  if (!has_window(params) || score.window_right < 0) return keys;
  const std::int64_t window = std::int64_t{score.window_left} + 1 + score.window_right;
  return std::min(keys, window);
}

int operand_bytes(const attn::AttendParams& params) {
  return size_of_element(params.query_element);
}
bool has_e4m3_products(const attn::AttendParams& params) {
  return operand_bytes(params) == 1 && !has_int8_scores(params) && params.e4m3_probability != 0;
}
bool has_wide_values(const attn::AttendParams& params) {
  return operand_bytes(params) == 1 && !has_int8_scores(params) && params.e4m3_probability == 0;
}

bool divides_columns(const attn::AttendParams& params, int columns) {
  const int all = attn::padded_columns(multiplied_columns(params), 1);
  return columns < all && all % columns == 0;
}

bool wants_registers(const HopperPlan& forms) { return forms.scales_first || forms.cap > 0; }

const TileChoice& choose_tile(const attn::AttendParams& params, const HopperPlan& forms) {
  const bool scales_first = wants_registers(forms);
  if (has_int8_scores(params)) {
    const bool has_one_tile = max_packed_rows(params) <= attn::kConsumerRows;
    return has_one_tile ? kInt8DecodeTile : first_tile(kInt8Tiles, params, scales_first);
  }
  if (has_e4m3_products(params)) {
    return params.fast_fp8_sums != 0 ? first_tile(kFastCodeTiles, params, scales_first)
                                     : first_tile(kCodeTiles, params, scales_first, forms.apart);
  }
  // Values of 16 bits in memory, as of level 2.
  if (has_values_apart(params)) return first_tile(kInt8Tiles, params, scales_first);
  if (has_wide_values(params)) {
    const bool is_window = has_short_sequences(params) && max_packed_rows(params) <= kWindowRows &&
                           has_columns_of(kWideWindowTile, params) && !scales_first;
    return is_window ? kWideWindowTile : first_tile(kWideTiles, params, scales_first);
  }
  if (key_bytes(params) == 1) return first_tile(kConvertedTiles, params, scales_first);
  const bool is_window = has_short_sequences(params) && has_columns_of(kWindowTile, params);
  if (is_window && !scales_first && forms.slopes == 0) return kWindowTile;
  if (is_image(params) && !scales_first && forms.slopes == 0) return image_tile(params);
  // Why not where bytes may not depend on the batch: the longest request would decide.
  const std::int64_t rows = max_packed_rows(params);
  const auto* const brief = std::find_if(
      kShortTiles.begin(), kShortTiles.end(),
      [&](const ShortTile& candidate) { return has_columns_of(candidate.tile, params); });
  if (params.batch_invariant == 0 && rows <= kShortRows && brief != kShortTiles.end()) {
    const auto cost_of_tiles = [&](std::int64_t tile_rows) {
      return static_cast<double>(ceil_quotient(rows, tile_rows) * tile_rows);
    };
    if (cost_of_tiles(128) * brief->cost < cost_of_tiles(192)) return brief->tile;
  }
  return first_tile(kHopperTiles, params, scales_first);
}

}  // namespace attnbench::cuda
