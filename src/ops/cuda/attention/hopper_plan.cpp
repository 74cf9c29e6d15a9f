#include "ops/cuda/attention/hopper_plan.h"

#include <algorithm>
#include <array>
#include <cstdint>
#include <numbers>
#include <span>

#include "core/error.h"
#include "ops/cuda/attention/hopper_options.h"
#include "ops/cuda/vector_choice.h"

namespace attnbench::cuda {
namespace {

/// Tiles up to a head size of keys and one of values; the first row that fits is taken.
struct TileChoice {
  int most_columns;    // D
  int most_v_columns;  // Dv
  int consumers;
  int tile_n;
  bool ping_pong;
  const char* reason;
  int stages = 2;
  int line = 0;             // attn::HopperTile
  bool persistent = false;  // and ahead where that can be: HopperPlan
  int sums = 0;             // HopperPlan, as the next
  bool fixed_base = false;
  bool apart = false;
};
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
    // Full attention of 32 heads, contiguous, one NVIDIA H200, 2026-11-30: 64 requests of 512
    // tokens 676 us (706 not in turns) and 719 by 192 x 80, 8 of 2,048 971 and 956, 2 of 8,192 3507
    // and 3370.
    ShortTile{{192, 128, 2, 128, true, kShortReason}, 1.05},
};

/// Up to so many query tokens of a request the producer works ahead, and each CTA goes through many
/// row tiles: the start and the end of a tile cost more than half of it there. Longer ones are
/// better dealt out one by one, the heaviest first. Measured on one NVIDIA H200, 2026-11-23, bf16
/// over pages of 16, 32 heads over 8 of D128, without and with it: 64 requests of 512 tokens 601
/// and 462 us, 8 of 2,048 546 and 508, 2 of 8,192 1537 and 1573, one of 16,384 2859 and 3006.
constexpr int kAheadTokens = 4096;
/// Of 64 columns: 2026-11-30, with a step for every stage, two requests of 8,192 tokens 1017 and
/// 987 us, one of 16,384 1878 and 1897. Of 128 1464 and 1526, 2820 and 2978, of 256 2840 and 2949.
constexpr int kAheadTokensOfFewColumns = 8192;
constexpr int kFewColumns = 64;
/// And then, up to so many keys a row, at a fixed address, and from there on with a step for every
/// stage: as above, neither, the one and the other, 64 requests of 512 tokens 262, 263 and 265 us,
/// 32 of 1,024 383, 379 and 382, 8 of 2,048 314, 310 and 310, 4 of 4,096 551, - and 539.
constexpr int kMostKeysOfOneStep = 2048;
/// Outputs of heads of so many columns are stored while the next row tile has begun. One NVIDIA
/// H200, 2026-11-29, bf16 over pages of 16, 32 heads over 8, without and with it: D128, 64 requests
/// of 512 tokens 401 and 385 us, 32 of 1,024 578 and 559, 8 of 2,048 478 and 466, 4 of 4,096 843
/// and 825, a window of 1,024 in 16,384 490 and 479; D96, 64 of 512 353 and 345. D64 292 and 296,
/// D112 379 and 387, and 128 requests of 256 tokens of D128 278 and 287 (2026-11-30).
bool has_late_columns(int columns) { return columns == 96 || columns == 128; }
constexpr int kLeastLateTokens = 257;

/// Windows of so many keys count as well, which cost as much as such requests: of 1,024 keys, one
/// request of 16,384 tokens, 2026-11-27, without and with it: D128 511 and 489 us, D64 410 and 363,
/// D256 925 and 880. Tiles of keys that end with what rows see gain nothing beside it (515, 367 and
/// 880 us).
constexpr bool kFitsWindows = false;
/// Up to so many columns maxima are found by integers, three at a time (HopperPlan::bounds): D128
/// 2827 and 2778 us, D64 1961 and 1918, D256 5355 and 5350 (as above, without a window). In a
/// window of 1,024 keys, where a CTA stays, D128 460 and 450 us, D64 341 and 333, D256 822 and 821
/// (2026-11-30); elsewhere they spill in windows.
constexpr int kMostBoundColumns = 128;
/// Of 64 columns: what more keys take in registers beside it would spill.
constexpr int kAheadTileN = 96;
/// Windows of an encoder: up to so many rows of keys of their own, which no other rows see, three
/// CTAs of one consumer share a multiprocessor, and each brings the keys of its next window while
/// it computes this one. Why: a window of 64 tokens is two products and 40 KB, and its time is that
/// of waiting for memory. Small images are the same as long as there are few of them: the more rows
/// of one image a CTA has, the fewer multiprocessors have work. Not measured.
constexpr std::int64_t kWindowRows = 256;
constexpr std::int64_t kFewTiles = 1024;  // of 64 rows
constexpr TileChoice kWindowTile{
    96, 96, 1, 64, false, "of few rows with keys of their own, several at a time", 2, 64, true};

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
/// Of int8 scores. Not measured: registers are those of 16-bit products, and so are the tiles;
/// products of scores take half the time of these.
constexpr std::array kInt8Tiles = {
    TileChoice{64, 64, 3, 128, true, "the widest that three consumers hold"},
    TileChoice{128, 96, 3, 96, false, "the widest that three consumers hold"},
    TileChoice{192, 128, 3, 80, false, "the widest that three consumers hold"},
    TileChoice{256, 256, 2, 64, false, "the output takes most of the registers of two consumers"},
};
/// Of decodes: one consumer, two CTAs on a multiprocessor. Not measured. What bounds it is memory:
/// of 64 keys of 128 columns 16 KB come, and 64 rows of them, few of which exist, take 384 clocks
/// of the tensor cores.
constexpr TileChoice kInt8DecodeTile{256, 256, 1, 64, false, "of no more than 64 rows", 2};
/// Columns of values up to which sums of all of them lie beside the output: HopperProducts.
constexpr int kMostWholeSums = 128;
/// Keys whose e4m3 products the tensor cores sum before f32 does; see choose_sums().
constexpr int kPromotedKeys = 192;

/// How soft caps and linear ALiBi are done where nothing else is asked for (HopperPlan). One
/// request of 16,384 tokens on one NVIDIA H200, 2026-11-27 and 28, bf16: ALiBi by
/// transform_scores() and by slopes with bounds: D128 3530 and 2947 us, D64 2981 and 2355, D256
/// 5759 and 5290. A cap of 30 by form 0 and 6: D128 4640 and 3741 us, D64 4168 and 2977, D256 6492
/// and 6494. With one_base=1 form 6 took 3301 us at D128, but a row was wrong. Why up to a cap of
/// 40: where scores are large, four share a reciprocal, and at 50 an LSE may be off by 2.2e-5,
/// where 2e-5 is allowed.
constexpr int kCapForm = 6;
constexpr float kMostCapOfForm = 40.0f;
constexpr int kMostCapColumns = 128;
constexpr int kSlopesForm = 1;
/// Exponents of 2 up to which weights and their sums need no base: 2^80 times 2^17 keys and values
/// of 2^30 are finite in f32, and so is 2^-80 of them.
constexpr float kMostExponent = 80.0f;

/// K and V of a group of units should stay in the L2 (60 MB on an H200): 8 heads of 8,192 keys and
/// 128 columns, or 4 of 16,384, were the best, 32 of them 4 % slower.
constexpr std::int64_t kGroupBytes = 33'600'000;
constexpr int kMostGroup = 64;

/// Of wide heads a CTA that stays goes from unit to unit, where there are so many row tiles that
/// its share comes out even all the same: what all CTAs read at a time is then near them in the L2.
/// One NVIDIA H200, 2026-11-30, timed only, D256 by groups as above and by one unit: 64 requests of
/// 512 tokens 612 and 564 us, 8 of 2,048 846 and 776 (in groups of 8 units 599 and 916, since heavy
/// row tiles then meet in some CTAs). Of 64 columns 64 requests of 512 tokens take 264 us, and 271
/// in groups of 8.
constexpr std::int64_t kLeastTilesByUnit = 2112;  // 16 for each multiprocessor of an H200
constexpr int kMostGroupedColumns = 128;

/// Row tiles of a causal prompt take about equally long where so many times its rows are keys.
constexpr std::int64_t kEvenContext = 4;

/// Whether rows may be blind to the last keys of a tile by more than their request's end.
bool is_causal(const attn::AttendParams& params) { return params.score.window_right >= 0; }

/// Whether rows are blind to keys far before them.
bool has_window(const attn::AttendParams& params) { return params.score.window_left >= 0; }
/// The most keys of a request, as far as the host knows; at least as many as rows, as a rule.
std::int64_t keys_of_request(const attn::AttendParams& params) {
  return std::max({params.max_seq_len, params.max_query_len, 1});
}
/// And that a row sees.
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
  return operand_bytes(params) == 1 && !has_int8_scores(params);
}

/// As few rows as kWindowTile is for.
bool has_short_sequences(const attn::AttendParams& params) {
  if (params.batch_invariant != 0 || is_paged(params) || is_causal(params)) return false;
  const std::int64_t rows = max_packed_rows(params);
  return rows <= kWindowRows ||
         (rows <= kShortRows && num_row_tiles(params, attn::kConsumerRows, 1) <= kFewTiles);
}
bool has_columns_of(const TileChoice& tile, const attn::AttendParams& params) {
  return params.head_size <= tile.most_columns && params.v_head_size <= tile.most_v_columns;
}

/// Whether values of e4m3 products are several pieces of so many columns.
bool divides_columns(const attn::AttendParams& params, int columns) {
  const int all = attn::padded_columns(multiplied_columns(params), 1);
  return columns < all && all % columns == 0;
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

/// Whether what transforms scores takes registers that a wide tile needs.
bool wants_registers(const HopperPlan& forms) {
  return forms.scales_first || (forms.cap > 0 && !forms.one_base);
}

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
  if (key_bytes(params) == 1) return first_tile(kConvertedTiles, params, scales_first);
  const bool is_window = has_short_sequences(params) && has_columns_of(kWindowTile, params);
  if (is_window && !scales_first && forms.slopes == 0) return kWindowTile;
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

/// Why outputs cannot be stored late; empty where they can.
std::string late_output_misfit(const attn::AttendParams& params, const HopperPlan& plan) {
  if (!plan.tile.ahead) return "late_output=1: only with ahead=1";
  if (!has_wide_stores(params)) return "late_output=1: rows of the output are not on 16 bytes";
  return attn::hopper_layout(plan.tile).query_stages > 1
             ? ""
             : "late_output=1: the next queries have no place of their own";
}

/// Whether a CTA that stays would have room for steps whose places are constants.
bool has_room_for_constants(const attn::AttendParams& params, const HopperPlan& plan) {
  return params.head_size == kFewColumns && params.v_head_size == kFewColumns && is_paged(params) &&
         is_causal(params) && params.score.mm_ranges == nullptr && !plan.scales_first &&
         plan.cap == 0 && plan.slopes == 0;
}

/// Why not where bytes may not depend on the batch: the longest request would choose the tile.
bool works_ahead(const attn::AttendParams& params, const HopperPlan& forms) {
  // Of 256 columns what transforms scores leaves no registers for it.
  if (params.v_head_size > 192 && wants_registers(forms)) return false;
  const int most = has_room_for_constants(params, forms) ? kAheadTokensOfFewColumns : kAheadTokens;
  return params.batch_invariant == 0 && keys_of_row(params) <= most &&
         hopper_ahead_misfit(params).empty();
}

/// Forms that transform scores, and ranges, were not measured, and have fewer registers to spare.
bool stores_late(const attn::AttendParams& params, const HopperPlan& asked) {
  if (!late_output_misfit(params, asked).empty() || !is_paged(params) || !is_causal(params)) {
    return false;
  }
  if (asked.scales_first || asked.cap > 0 || asked.slopes > 0 || asked.tile.consumers < 3) {
    return false;
  }
  return params.score.mm_ranges == nullptr && key_bytes(params) == 2 &&
         params.head_size == params.v_head_size && has_late_columns(params.head_size) &&
         keys_of_row(params) >= kLeastLateTokens;
}

/// Of level 1, whose values are converted. One NVIDIA H200, 2026-11-28, D128: two requests of 8,192
/// tokens 2250 us without it and 1682 us with it, one of 16,384 4333 and 3178 us.
bool keeps_columns(const attn::AttendParams& params) {
  return has_int8_scores(params) && value_element(params) == attn::Element::kI8;
}

/// Prompts of level 2, whose values have 16 bits. One NVIDIA H200, 2026-11-28, two requests of
/// 8,192 tokens: with maxima by integers, a step for every stage and a fixed address D128 1577 us
/// and 1639 without, D64 1346 and 1405 (at an address that is not fixed), D256 2487 and 2526. At
/// level 1, where values are converted, none of these gains anything at D128.
bool is_prompt_of_level_2(const attn::AttendParams& params) {
  return has_int8_scores(params) && value_element(params) != attn::Element::kI8 &&
         max_packed_rows(params) > attn::kConsumerRows;
}

bool bounds_pay(const attn::AttendParams& params, const HopperPlan& forms) {
  if (is_prompt_of_level_2(params)) return is_causal(params) && !forms.scales_first;
  const bool has_16_bits = operand_bytes(params) == 2 && key_bytes(params) == 2;
  // Why pages: of ragged keys rows may be blind to the first ones as well, and it spills as in a
  // window.
  if (!has_16_bits || !is_paged(params) || !is_causal(params)) return false;
  if (has_window(params) && (forms.slopes > 0 || !forms.tile.ahead)) return false;
  if (params.score.soft_cap > 0.0f || params.score.mm_ranges != nullptr) return false;
  const bool is_narrow =
      params.head_size <= kMostBoundColumns && params.v_head_size <= kMostBoundColumns;
  return forms.slopes > 0 || (is_narrow && !forms.scales_first);
}

/// Whether a step for every stage pays in the plan that is asked for. Over pages, as above: bf16 of
/// D128 1449 us and 1462 without, D64 1029 and 1042, D256 2872 and 2871; e4m3 by pieces of D128
/// 1409 and 1460, D64 1048 and 1072, D256 2499 and 2471, contiguous of an encoder of 80 columns
/// 2241 and 2334; e4m3 apart, one request of 16,384 tokens, D128 2347 and 2431, D64 1909 and 1772,
/// the encoder 2052 and 2020; with fast sums D128 2253 and 2379; int8 at level 1 of D64 1291 and
/// 1349, of D128 1690 and 1679. With a soft cap or ALiBi it gains nothing, and where a CTA stays
/// for several row tiles the copies would spill, but of 64 columns.
bool unrolling_pays(const attn::AttendParams& params, const HopperPlan& plan) {
  if (has_window(params)) return false;
  if (plan.scales_first || plan.cap > 0 || plan.slopes > 0) return false;
  if (plan.stays()) {
    return plan.tile.ahead && has_room_for_constants(params, plan) &&
           keys_of_row(params) > kMostKeysOfOneStep;
  }
  const int columns = std::max(params.head_size, params.v_head_size);
  if (has_e4m3_products(params)) {
    if (params.fast_fp8_sums != 0) return plan.fixed_base && columns <= 128;
    return plan.apart ? columns > 96 && columns <= 128 : plan.sums > 0 && columns <= 128;
  }
  if (!is_paged(params) || !is_causal(params)) return false;
  if (has_int8_scores(params)) {
    return is_prompt_of_level_2(params) ||
           (columns <= 64 && max_packed_rows(params) > attn::kConsumerRows);
  }
  return key_bytes(params) == 2 && columns <= 128;
}

int group_of(const attn::AttendParams& params, const HopperPlan& plan) {
  const std::int64_t tiles = num_row_tiles(params, plan.tile_rows(), 1);
  const bool is_wide = std::max(params.head_size, params.v_head_size) > kMostGroupedColumns;
  if (plan.tile.ahead && is_wide && tiles >= kLeastTilesByUnit) return 1;
  // Why 1: without a causal mask the row tiles of a unit are all alike, and follow one another.
  if (!is_causal(params)) return 1;
  const std::int64_t bytes =
      keys_of_request(params) * (params.head_size + params.v_head_size) * key_bytes(params);
  int group = 1;
  while (2 * group <= kMostGroup && 2 * group * bytes <= kGroupBytes) group *= 2;
  return group;
}

/// Whether row tiles take about equally long, so that those left over at the end count. Why 16 bits
/// and no turns: cut ones are done by one consumer. Why not where bytes may not depend on the
/// batch: of contiguous keys, tiles end with what a piece's rows see.
bool cuts_tail(const attn::AttendParams& params, const HopperPlan& plan) {
  if (plan.stays() || plan.ping_pong || plan.tile.consumers < 2 || params.batch_invariant != 0) {
    return false;
  }
  if (key_bytes(params) != 2 || has_window(params) || params.score.mm_ranges != nullptr) {
    return false;
  }
  return !is_causal(params) || params.max_seq_len >= kEvenContext * params.max_query_len;
}

/// Sets how many tiles' e4m3 products the tensor cores sum; why the tile cannot be, or "".
std::string choose_sums(const attn::AttendParams& params, HopperPlan& plan) {
  const bool has_sums = has_e4m3_products(params) && params.fast_fp8_sums == 0;
  if (!has_sums) plan.sums = 0;
  plan.apart = plan.apart && has_sums;
  if (!has_e4m3_products(params)) {
    plan.promote = 0;
    return "";
  }
  if (plan.tile.tile_n % 32 != 0) {
    return fmt::format("tile_n={}: e4m3 products take multiples of 32 keys", plan.tile.tile_n);
  }
  // Each step of 32 keys cuts what lies more than 13 bits below the sum, 2^-14 of it on average.
  // Where all values have one sign, a sum of the 6 steps of 192 keys is 1.8e-4 too small, one of
  // 131,072 keys 13 %. Wider heads are summed piece by piece, each tile anew.
  const bool by_pieces = params.v_head_size > kMostWholeSums || plan.sums > 0;
  if (plan.sums > 0 && !divides_columns(params, plan.sums)) {
    return fmt::format("sums={}: the {} columns of values are not several times as many", plan.sums,
                       attn::padded_columns(multiplied_columns(params), 1));
  }
  if (params.fast_fp8_sums == 0 && plan.promote == 0) {
    plan.promote = std::max(kPromotedKeys / plan.tile.tile_n, 1);
  }
  if (plan.apart) plan.promote = 1;
  if (by_pieces && plan.promote > 1) plan.promote = 1;
  return "";
}

/// How e4m3 products are summed, for the reason of a plan.
std::string sums_text(const attn::AttendParams& params, const HopperPlan& plan) {
  if (!has_e4m3_products(params)) return "";
  if (plan.promote == 0) return ", fast sums of 13 bits";
  const std::string pieces = plan.apart ? ", no tile beside another"
                             : plan.sums > 0
                                 ? fmt::format(", {} columns at a time beside weights", plan.sums)
                                 : "";
  return fmt::format(", sums of {} keys promoted to f32{}", plan.promote * plan.tile.tile_n,
                     pieces);
}

}  // namespace

std::string hopper_ahead_misfit(const attn::AttendParams& params) {
  if (key_bytes(params) == 1) return "codes, which take all warps that could work ahead";
  const int group = params.num_heads / params.num_kv_heads;
  if (attn::kConsumerRows % group != 0) {
    return fmt::format("groups of {} heads, which do not divide 64 rows", group);
  }
  if (params.head_size % 16 != 0) {
    return fmt::format("head size {} is not a multiple of 16", params.head_size);
  }
  return "";
}

int multiplied_columns(const attn::AttendParams& params) {
  const attn::KvParams& kv = params.kv;
  const int columns = (params.v_head_size + 15) / 16 * 16;
  const bool has_room = kv.head_stride_value >= columns && kv.token_stride_value >= columns;
  return !is_paged(params) && has_room && kv.element == attn::Element::kE4M3 &&
                 params.query_element == attn::Element::kE4M3
             ? columns
             : params.v_head_size;
}

bool has_wide_stores(const attn::AttendParams& params) {
  return size_of_element(params.output_element) == 2 &&
         Alignment()
                 .pointer(params.output)
                 .stride(params.output_token_stride, params.output_element)
                 .stride(params.output_head_stride, params.output_element)
                 .common_bytes() == kRowAlignment;
}

void choose_transform(const attn::AttendParams& params, HopperPlan& plan) {
  const attn::ScoreParams& score = params.score;
  const attn::Alibi alibi = attn::local_form(score.alibi);
  const bool is_linear = alibi == attn::Alibi::kKeyIndex || alibi == attn::Alibi::kContextRelative;
  const bool is_capped = score.soft_cap > 0.0f;
  const bool has_16_bits = operand_bytes(params) == 2 && key_bytes(params) == 2;
  if (!has_16_bits || !is_capped || alibi != attn::Alibi::kNone) plan.cap = 0;
  if (!has_16_bits || is_capped || !is_linear) plan.slopes = 0;
  // A thread's rows are 8 apart, so heads of a group that divides 8 are the same.
  const int group = params.num_heads / params.num_kv_heads;
  if (plan.slopes > 0) plan.slopes = 8 % group == 0 ? 1 : 2;
  plan.one_base = plan.one_base && plan.cap > 0 && params.query_element == attn::Element::kBF16 &&
                  score.soft_cap * std::numbers::log2e_v<float> <= kMostExponent;
  plan.scales_first = scales_first(params) && plan.cap == 0 && plan.slopes == 0;
}

/// Why not where bytes may not depend on the batch: rows that share a tile decide whether a series
/// does.
int cap_form(const attn::AttendParams& params) {
  if (params.batch_invariant != 0) return 0;
  const bool is_narrow =
      params.head_size <= kMostCapColumns && params.v_head_size <= kMostCapColumns;
  return is_narrow && params.score.soft_cap <= kMostCapOfForm ? kCapForm : 0;
}

HopperPlan hopper_plan(const attn::AttendParams& params, std::string_view options) {
  HopperPlan plan;
  plan.cap = cap_form(params);
  plan.slopes = kSlopesForm;
  HopperPlan forms = plan;
  forms.apart = true;
  apply_hopper_options(options, &forms);
  forms.apart = forms.apart && forms.sums == 0;
  choose_transform(params, forms);
  const TileChoice& choice = choose_tile(params, forms);
  plan.tile = {params.head_size,
               multiplied_columns(params),
               choice.tile_n,
               choice.stages,
               choice.consumers,
               is_paged(params) ? params.kv.block_size : 0,
               false,
               operand_bytes(params),
               key_bytes(params),
               choice.line,
               has_int8_scores(params) ? size_of_element(value_element(params)) : 0};
  plan.ping_pong = choice.ping_pong;
  plan.persistent = choice.persistent;
  plan.sums = choice.sums;
  plan.apart = choice.apart;
  plan.fixed_base = choice.fixed_base || (is_prompt_of_level_2(params) && params.head_size > 64);
  plan.keep_columns = keeps_columns(params);
  plan.fits_tiles = kFitsWindows;
  plan.tile.ahead = works_ahead(params, forms);
  HopperPlan asked = plan;
  std::string reason = apply_hopper_options(options, &asked);
  // Sums of either kind that are asked for replace those of the choice.
  const auto settle_sums = [&](HopperPlan& p) {
    if (p.apart && forms.sums == 0) p.sums = 0;
    p.apart = p.apart && p.sums == 0;
  };
  settle_sums(asked);
  choose_transform(params, asked);
  plan.group = group_of(params, asked);
  plan.bounds = bounds_pay(params, asked);
  plan.unrolled = unrolling_pays(params, asked);
  plan.late_output = stores_late(params, asked);
  plan.tail = cuts_tail(params, asked);
  if (asked.tile.ahead && has_room_for_constants(params, asked) &&
      keys_of_row(params) <= kMostKeysOfOneStep) {
    plan.fixed_base = true;
  }
  if (asked.tile.ahead && choice.most_columns == 64) plan.tile.tile_n = kAheadTileN;
  apply_hopper_options(options, &plan);
  settle_sums(plan);
  choose_transform(params, plan);
  plan.fits_tiles = plan.fits_tiles && has_window(params) && is_paged(params);
  plan.add_floats = plan.add_floats && has_int8_scores(params);
  plan.keep_columns = plan.keep_columns && key_bytes(params) == 1;
  plan.tail = plan.tail && !plan.stays() && !plan.ping_pong;
  if (reason.empty() && plan.tile.ahead) reason = hopper_ahead_misfit(params);
  if (reason.empty() && plan.late_output) reason = late_output_misfit(params, plan);
  if (reason.empty()) reason = choose_sums(params, plan);
  if (!reason.empty()) fail(ErrorKind::kUnsupported, "kernel hopper_prefill: {}", reason);
  if (plan.tile.consumers == 1) plan.ping_pong = false;  // there is no other to take turns with
  const std::string lines = plan.tile.line != 0 && plan.tile.block_size == 0
                                ? fmt::format(", lines of {} bytes", plan.tile.line)
                                : "";
  plan.reason = fmt::format(
      "{} rows by {} keys, {} stages{}{}{}{}{}{}{}{}{}{}{}{}{}{}{}{}: {}", plan.tile_rows(),
      plan.tile.tile_n, plan.tile.stages, lines, plan.ping_pong ? ", in turns" : "",
      plan.tile.ahead ? ", ahead" : (plan.persistent ? ", persistent" : ""),
      plan.late_output ? ", late output" : "", plan.fixed_base ? ", at a fixed address" : "",
      plan.reverse ? ", every other head reversed" : "", plan.tail ? ", left over ones cut" : "",
      plan.cap > 0 ? fmt::format(", soft cap by form {}", plan.cap) : "",
      plan.slopes > 0 ? ", slopes by distances in a tile" : "",
      plan.fits_tiles ? ", tiles end with the window" : "",
      plan.bounds ? ", maxima by integers" : "", plan.ordered ? ", weights before waits" : "",
      plan.add_floats ? ", integers to f32 by additions" : "",
      plan.keep_columns ? ", codes by lanes that keep their columns" : "",
      plan.unrolled ? ", a step for every stage" : "", sums_text(params, plan),
      options.empty() ? choice.reason : "as asked for");
  return plan;
}

}  // namespace attnbench::cuda
