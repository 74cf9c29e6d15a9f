#include "ops/cuda/attention/hopper_plan.h"

#include <algorithm>
#include <cstdint>
#include <numbers>

#include "core/error.h"
#include "ops/cuda/attention/hopper_code_prompts.h"
#include "ops/cuda/attention/hopper_options.h"
#include "ops/cuda/attention/hopper_tile_choice.h"
#include "ops/cuda/vector_choice.h"

namespace attnbench::cuda {
namespace {

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
/// Where every query head has keys of its own, a row tile has as many tokens as rows, and so more
/// tiles of keys that the mask cuts. Causal, over pages; one NVIDIA H200, 2026-11-30, 32 heads, us:
/// of 64 columns two requests of 8,192 tokens 1048 ahead and 1011 otherwise, 8 of 2,048 352 ahead
/// and 378 otherwise, by 64 keys as short prompts 343 and FlashAttention-3 343; of 128 columns 4 of
/// 4,096 884 ahead and 854 otherwise, 8 of 2,048 487 and 521, and 64 of 512 425 and with a third
/// stage 412.
constexpr int kAheadTokensOfOneHead = 2048;
bool has_own_keys(const attn::AttendParams& params) {
  return params.num_heads == params.num_kv_heads;
}
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
/// Heads of 64 columns over pages, causal: warpgroups take no turns, and a third stage comes in,
/// where prompts are long or short. One NVIDIA H200, 2026-11-30, in turns and not: one request of
/// 16,384 tokens 1875 and 1852 us, with linear ALiBi 2350 and 2221 (of two stages), chunks of 2 x
/// 2,048 behind 14k keys 974 and 926, whose last row tiles can be cut then. Ahead, by tiles of 96
/// and of 64 keys: 128 requests of 256 tokens 220 and 199, 64 of 512 266 and 257, a window of 1,024
/// 331 and 327; 32 of 1,024 385 and 386, 8 of 2,048 315 and 326.
constexpr int kMostShortKeys = 512;
constexpr int kMostShortKeysOfOneHead = 2048;
constexpr int kShortTileN = 64;
constexpr int kStagesWithoutTurns = 3;
/// And of 128 columns ahead, from so many keys a row on: 32 requests of 1,024 tokens 525 and 524 us
/// with a third stage, 8 of 2,048 447 and 443, 4 of 4,096 811 and 801, a window of 1,024 454 and
/// 439; 64 of 512 345 and 346, 128 of 256 277 and 289.
constexpr int kLeastKeysOfThreeStages = 1024;
constexpr int kLeastKeysOfThreeStagesOfOneHead = 512;
/// Columns of values up to which sums of all of them lie beside the output: HopperProducts.
constexpr int kMostWholeSums = 128;
/// Keys whose e4m3 products the tensor cores sum before f32 does; see choose_sums().
constexpr int kPromotedKeys = 192;

/// How soft caps are done where nothing else is asked for (HopperPlan). One request of 16,384
/// tokens on one NVIDIA H200, 2026-12-01, bf16, D64 / D96 / D128 / D256: a cap of 30 by forms 1, 2
/// and 3 3425 / 3667 / 3934 / 6076 us, 3227 / 3657 / 4028 / 6540 and 2695 / 3097 / 3534 / 6006, a
/// cap of 50 by forms 0 and 4 4151 / 4624 / 4654 / 6508 and 2689 / 3055 / 3489 / 5977. Why form 3
/// up to a cap of 40: where scores are large, four share a reciprocal, and at 50 an LSE may be off
/// by 2.2e-5, where 2e-5 is allowed; what the short series is off by is 1e-5 at a cap of 100.
constexpr int kCapForm = 3;
constexpr float kMostCapOfForm = 40.0f;
constexpr int kHighCapForm = 4;
constexpr float kMostHighCap = 100.0f;
constexpr int kMostCapColumns = 128;
constexpr int kWideCapColumns = 256;
/// Of 64 columns, in turns by 96 keys 2695 us, without by 112 keys 2621, with three stages 2614 and
/// a step for each 2594. With ALiBi by products in turns by 128 keys 2045, without and with three
/// stages 2035, by 112 keys with a step for each of two stages 2022, of three 1999, by 96 2025.
constexpr int kFewTransformedTileN = 112;
/// Linear ALiBi by products, by fused multiplications 2205 / 2665 / 3131 / 5505 us, by products
/// 2045 / 2476 / 2878 / 5519, with a step for every stage - / 2359 / 2782 / 5402; without ALiBi
/// 1857 / 2325 / 2752 / 5467 in the call of the last, 1875 / 2359 / 2805 / 5486 in that of the
/// others. 64 requests of 512 tokens 326 / 352 / 389 / 614 and 299 / 338 / 391 / 603.
constexpr bool kSlopesByProducts = true;

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

/// Why outputs cannot be stored late; empty where they can.
std::string late_output_misfit(const attn::AttendParams& params, const HopperPlan& plan) {
  if (!plan.tile.ahead) return "late_output=1: only with ahead=1";
  if (has_e4m3_products(params)) return "late_output=1: columns of e4m3 products lie apart";
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

bool is_causal_over_pages(const attn::AttendParams& params) {
  return is_paged(params) && is_causal(params) && operand_bytes(params) == 2 &&
         key_bytes(params) == 2 && params.score.mm_ranges == nullptr;
}

int most_ahead_tokens(const attn::AttendParams& params, const HopperPlan& forms) {
  if (has_own_keys(params)) {
    const bool is_measured = params.head_size == 128 && params.v_head_size == 128 &&
                             is_causal_over_pages(params) && !has_window(params);
    return is_measured ? kAheadTokensOfOneHead : kAheadTokens;
  }
  return has_room_for_constants(params, forms) ? kAheadTokensOfFewColumns : kAheadTokens;
}

/// Why not where bytes may not depend on the batch: the longest request would choose the tile.
bool works_ahead(const attn::AttendParams& params, const HopperPlan& forms) {
  // Of 256 columns what transforms scores leaves no registers for it.
  if (params.v_head_size > 192 && wants_registers(forms)) return false;
  if (operand_bytes(params) == 1) return code_prompt(params, forms).has_value();
  return params.batch_invariant == 0 && keys_of_row(params) <= most_ahead_tokens(params, forms) &&
         hopper_ahead_misfit(params).empty();
}

/// Whether that takes instructions, and registers, for every score.
bool transforms_scores(const HopperPlan& plan) {
  return plan.scales_first || plan.cap > 0 || (plan.slopes > 0 && !plan.tile.slope_products);
}

/// Whether rows see no more keys than that. Why not where bytes may not depend on the batch: its
/// longest request would decide.
bool are_keys_few(const attn::AttendParams& params, std::int64_t most) {
  return params.batch_invariant == 0 && keys_of_row(params) <= most;
}

/// Every row sees all of contiguous keys: with maxima by integers, a step for every stage, and
/// both, two requests of 8,192 tokens of 128 columns 2775, 2783 and 2768 us, 2825 without, of 64
/// columns 1840, 1867 and 1839, 1865 without, in another call 1867 with steps and 1906 without (one
/// NVIDIA H200, 2026-11-30); an image of 16,384 patches and 80 columns 2203, 2195 and 2164 us, 2230
/// without (2026-12-01). Where a CTA stays, maxima by integers spill, and were not measured.
bool is_long_and_full(const attn::AttendParams& params, const HopperPlan& plan) {
  const auto is_measured = [](int columns) {
    return columns == kFewColumns || columns == 72 || columns == 80 || columns == 128;
  };
  return !plan.stays() && !are_keys_few(params, kAheadTokens) && plan.tile.consumers == 3 &&
         !is_paged(params) && !is_causal(params) && !has_window(params) &&
         params.score.mm_ranges == nullptr && params.score.soft_cap <= 0.0f &&
         operand_bytes(params) == 2 && key_bytes(params) == 2 && is_measured(params.head_size) &&
         params.v_head_size == params.head_size;
}

/// Scores in e4m3 beside weights of 16 bits. As it was, with maxima by integers and a step for
/// every stage, and with a third stage too, one request of 16,384 tokens of 128 columns over pages
/// 2788, 2734 and 2697 us, of 64 columns 1940, 1839 and 1832, of 256 8342 and 8827; an image of
/// 16,384 patches of 80 columns 3150 and 3047. 64 requests of 512 tokens 487, 491 and 487, by 64
/// keys and three stages 470; of 64 columns 407, 417, 419 and 388 (one NVIDIA H200, 2026-12-01).
bool is_plain_wide(const attn::AttendParams& params, const HopperPlan& forms) {
  const int columns = std::max(params.head_size, params.v_head_size);
  const int most_columns = has_values_apart(params) ? 256 : 128;  // as at level 2 of int8
  const bool is_measured =
      is_paged(params) ? is_causal(params) : !is_causal(params) && columns > 64 && columns <= 96;
  return has_wide_values(params) && is_measured && columns <= most_columns && !has_window(params) &&
         params.score.mm_ranges == nullptr && params.score.soft_cap <= 0.0f &&
         !transforms_scores(forms);
}

/// What of a tile depends on whether the plan that is asked for works ahead.
void settle_tile(const attn::AttendParams& params, const TileChoice& choice,
                 const HopperPlan& asked, HopperPlan& plan) {
  if (choice.most_columns == kFewColumns && operand_bytes(params) == 2 && key_bytes(params) == 2) {
    const int most = has_own_keys(params) ? kMostShortKeysOfOneHead : kMostShortKeys;
    const bool is_brief = keys_of_row(params) <= most || has_window(params);
    if (asked.tile.ahead) plan.tile.tile_n = kAheadTileN;
    if (!is_causal_over_pages(params) || (asked.tile.ahead && !is_brief)) return;
    if (asked.tile.ahead) plan.tile.tile_n = kShortTileN;
    plan.tile.stages = kStagesWithoutTurns;
    plan.ping_pong = false;
    if (asked.tile.slope_products && !asked.tile.ahead) plan.tile.tile_n = kFewTransformedTileN;
  }
  const bool is_narrow = params.head_size == kFewColumns && params.v_head_size == kFewColumns;
  if (asked.cap > 1 && is_narrow && is_causal_over_pages(params) && !asked.tile.ahead) {
    plan.tile.tile_n = kFewTransformedTileN;
    plan.tile.stages = kStagesWithoutTurns;
    plan.ping_pong = false;
  }
  if (is_plain_wide(params, asked) && is_paged(params) && choice.consumers == 3 &&
      asked.tile.tile_n <= choice.tile_n) {
    plan.tile.stages = kStagesWithoutTurns;
    if (are_keys_few(params, kMostShortKeys)) plan.tile.tile_n = kShortTileN;
  }
  if (asked.tile.ahead && operand_bytes(params) == 1) {
    if (const std::optional<CodePrompt> prompt = code_prompt(params, asked)) {
      plan.tile.tile_n = prompt->tile_n;
      plan.tile.stages = prompt->stages;
      plan.ping_pong = prompt->ping_pong;
      if (sums_by_pieces(params)) plan.fixed_base = false;
    }
    return;
  }
  // Long images: 8,112 patches of 80 columns 606 us in turns and 575 without, 16,384 of them 2164
  // in turns, 2176 without and 2164 by three stages, 12,288 of 72 columns 1217, 1225 and 1221 (one
  // NVIDIA H200, 2026-12-01). Without turns row tiles can be cut at the end.
  if (choice.most_columns == kImageColumns && is_long_and_full(params, asked)) {
    plan.tile.stages = kStagesWithoutTurns;
    plan.ping_pong = false;
  }
  if (params.head_size == 128 && params.v_head_size == 128 && choice.consumers == 3 &&
      asked.tile.ahead && is_causal_over_pages(params) && !transforms_scores(asked) &&
      keys_of_row(params) >=
          (has_own_keys(params) ? kLeastKeysOfThreeStagesOfOneHead : kLeastKeysOfThreeStages)) {
    plan.tile.stages = kStagesWithoutTurns;
  }
}

/// Forms that transform scores, and ranges, were not measured, and have fewer registers to spare.
bool stores_late(const attn::AttendParams& params, const HopperPlan& asked) {
  if (!late_output_misfit(params, asked).empty() || transforms_scores(asked)) return false;
  if (operand_bytes(params) == 1) {
    const std::optional<CodePrompt> prompt = code_prompt(params, asked);
    return prompt && prompt->late_output;
  }
  return is_causal_over_pages(params) && asked.tile.consumers == 3 &&
         params.head_size == params.v_head_size && has_late_columns(params.head_size) &&
         keys_of_row(params) >= kLeastLateTokens;
}

/// Where codes become numbers of 16 bits. One NVIDIA H200, two requests of 8,192 tokens, without
/// and with it: int8 at level 1 of D128 2250 and 1682 us (2026-11-28), e4m3 beside weights of 16
/// bits of D128 1947 and 1474, beside bf16 queries of D128 3261 and 2834, D64 1864 and 1448
/// (2026-12-01).
/// Contiguous keys beside 16-bit queries would spill.
bool keeps_columns(const attn::AttendParams& params) {
  if (has_int8_scores(params)) return value_element(params) == attn::Element::kI8;
  return (has_wide_values(params) && !has_values_apart(params)) ||
         (key_bytes(params) == 1 && operand_bytes(params) == 2 && is_paged(params));
}

/// Prompts of level 2, whose values have 16 bits. One NVIDIA H200, 2026-11-28, two requests of
/// 8,192 tokens: with maxima by integers, a step for every stage and a fixed address D128 1577 us
/// and 1639 without, D64 1346 and 1405 (at an address that is not fixed), D256 2487 and 2526. At
/// level 1, where values are converted, none of these gains anything at D128.
bool is_prompt_of_level_2(const attn::AttendParams& params) {
  return has_int8_scores(params) && value_element(params) != attn::Element::kI8 &&
         max_packed_rows(params) > attn::kConsumerRows;
}

/// Int8 prompts of 64 columns at either level. One NVIDIA H200, 2026-12-01, two requests of 8,192
/// tokens at level 1 / 2: in turns, two stages 1247 / 1420 us, with a step for every stage 1373 /
/// 1336 (chosen until then); without turns, three stages, maxima by integers 1227 / 1311. At
/// 1bbb773 a step for every stage had taken 1291 at level 1, and 1349 without.
bool is_narrow_int8_prompt(const attn::AttendParams& params) {
  return has_int8_scores(params) && params.head_size <= kFewColumns &&
         params.v_head_size <= kFewColumns && max_packed_rows(params) > attn::kConsumerRows;
}

bool bounds_pay(const attn::AttendParams& params, const HopperPlan& forms) {
  if (forms.tile.ahead && operand_bytes(params) == 1) {
    const std::optional<CodePrompt> prompt = code_prompt(params, forms);
    return prompt && prompt->bounds;
  }
  if (is_prompt_of_level_2(params)) return is_causal(params) && !forms.scales_first;
  if (is_narrow_int8_prompt(params)) return is_causal(params) && !forms.scales_first;
  if (is_long_and_full(params, forms)) return !transforms_scores(forms);
  if (has_wide_values(params)) {
    return is_plain_wide(params, forms) && !forms.stays() && !are_keys_few(params, kMostShortKeys);
  }
  // An encoder of 80 columns in e4m3, 16,384 patches 2086 and 2049 us, 8,112 603 and 596 (one
  // NVIDIA H200, 2026-12-01).
  if (forms.apart && !is_paged(params)) return !is_causal(params) && params.v_head_size <= 96;
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
/// the encoder 2052 and 2020; with fast sums D128 2253 and 2379; int8 at level 1 of D128 1690 and
/// 1679, of D64 is_narrow_int8_prompt(). What it gains with a soft cap and ALiBi: kCapForm,
/// kSlopesByProducts. Where a CTA stays for several row tiles the copies would spill, but of 64
/// columns.
bool unrolling_pays(const attn::AttendParams& params, const HopperPlan& plan) {
  if (has_window(params)) return false;
  if (plan.cap > 1 || plan.tile.slope_products) {
    return !plan.stays() && is_causal_over_pages(params);
  }
  if (transforms_scores(plan)) return false;
  if (plan.stays()) {
    // Two requests of 8,192 tokens beside values apart, ahead: of 128 columns 1260 us and 1223 with
    // it, of 64 columns 960 and 950 (one NVIDIA H200, 2026-12-01).
    if (plan.tile.values_apart && has_wide_values(params)) {
      return is_plain_wide(params, plan) && keys_of_row(params) > kMostKeysOfOneStep;
    }
    return plan.tile.ahead && has_room_for_constants(params, plan) &&
           keys_of_row(params) > kMostKeysOfOneStep;
  }
  const int columns = std::max(params.head_size, params.v_head_size);
  if (has_e4m3_products(params)) {
    if (params.fast_fp8_sums != 0) return plan.fixed_base && columns <= 128;
    return plan.apart ? columns > 96 && columns <= 128 : plan.sums > 0 && columns <= 128;
  }
  if (is_long_and_full(params, plan)) return true;
  if (has_wide_values(params)) {
    return is_plain_wide(params, plan) && !are_keys_few(params, kMostShortKeys);
  }
  if (!is_paged(params) || !is_causal(params)) return false;
  if (has_int8_scores(params)) {
    return is_prompt_of_level_2(params) && columns > kFewColumns;
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

/// Whether row tiles can be cut. Why no turns: one consumer does a piece. Why 16 bits: int8 keys
/// may be stored by the only row tile of their request, and pieces would read what others store.
bool can_cut_tail(const attn::AttendParams& params, const HopperPlan& plan) {
  return !plan.stays() && !plan.ping_pong && plan.tile.consumers > 1 && key_bytes(params) == 2;
}

/// Whether row tiles take about equally long, so that those left over at the end count. Why not
/// where bytes may not depend on the batch: of contiguous keys, tiles end with what a piece's rows
/// see.
bool cuts_tail(const attn::AttendParams& params, const HopperPlan& plan) {
  if (!can_cut_tail(params, plan) || params.batch_invariant != 0 || has_window(params) ||
      params.score.mm_ranges != nullptr) {
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
  if (key_bytes(params) < operand_bytes(params)) {
    return "codes beside queries of 16 bits, which take all warps that could work ahead";
  }
  const int group = params.num_heads / params.num_kv_heads;
  if (attn::kConsumerRows % group != 0) {
    return fmt::format("groups of {} heads, which do not divide 64 rows", group);
  }
  const int step = 32 / operand_bytes(params);
  if (params.head_size % step != 0) {
    return fmt::format("head size {} is not a multiple of {}", params.head_size, step);
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
  // Forms of a cap, and slopes in units of scores, look for the largest score.
  const bool keeps_order = score.softmax_scale > 0.0f;
  if (!has_16_bits || !is_capped || alibi != attn::Alibi::kNone || !keeps_order) plan.cap = 0;
  if (!has_16_bits || is_capped || !is_linear) plan.slopes = 0;
  if (plan.slopes == 0 || !keeps_order) plan.tile.slope_products = false;
  // A thread's rows are 8 apart, so heads of a group that divides 8 are the same.
  const int group = params.num_heads / params.num_kv_heads;
  if (plan.slopes > 0) plan.slopes = 8 % group == 0 ? 1 : 2;
  plan.scales_first = scales_first(params) && plan.cap == 0 && plan.slopes == 0;
}

/// Why not where bytes may not depend on the batch: rows that share a tile decide whether a series
/// does.
int cap_form(const attn::AttendParams& params) {
  if (params.batch_invariant != 0) return 0;
  const bool is_narrow =
      params.head_size <= kMostCapColumns && params.v_head_size <= kMostCapColumns;
  const bool is_measured = is_narrow || params.head_size == kWideCapColumns;
  if (!is_measured || params.score.soft_cap > kMostHighCap) return 0;
  return params.score.soft_cap <= kMostCapOfForm ? kCapForm : kHighCapForm;
}

HopperPlan hopper_plan(const attn::AttendParams& params, std::string_view options) {
  HopperPlan plan;
  plan.cap = cap_form(params);
  plan.slopes = 1;
  plan.tile.slope_products = kSlopesByProducts;
  HopperPlan forms = plan;
  forms.apart = !sums_by_pieces(params);
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
  plan.tile.wide_values = has_wide_values(params);
  plan.tile.slope_products = forms.tile.slope_products;
  plan.tile.values_apart = has_values_apart(params);
  plan.ping_pong = choice.ping_pong;
  plan.persistent = choice.persistent;
  plan.sums = choice.sums;
  plan.apart = choice.apart;
  const bool has_wide_columns = is_prompt_of_level_2(params) || has_values_apart(params);
  plan.fixed_base = choice.fixed_base || (has_wide_columns && params.head_size > 64);
  plan.keep_columns = keeps_columns(params);
  plan.fits_tiles = kFitsWindows;
  plan.tile.ahead = works_ahead(params, forms);
  HopperPlan asked = plan;
  std::string reason = apply_hopper_options(options, &asked);
  choose_transform(params, asked);
  settle_tile(params, choice, asked, plan);
  asked = plan;
  apply_hopper_options(options, &asked);
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
  plan.late_output =
      stores_late(params, asked) || (choice.late_output && !transforms_scores(asked) &&
                                     late_output_misfit(params, asked).empty());
  plan.tail = cuts_tail(params, asked);
  if (asked.tile.ahead && has_room_for_constants(params, asked) &&
      keys_of_row(params) <= kMostKeysOfOneStep) {
    plan.fixed_base = true;
  }
  apply_hopper_options(options, &plan);
  settle_sums(plan);
  choose_transform(params, plan);
  plan.fits_tiles = plan.fits_tiles && has_window(params) && is_paged(params);
  plan.add_floats = plan.add_floats && has_int8_scores(params);
  plan.keep_columns = plan.keep_columns && key_bytes(params) == 1;
  plan.tail = plan.tail && can_cut_tail(params, plan);
  if (reason.empty() && plan.tile.ahead) reason = hopper_ahead_misfit(params);
  if (reason.empty() && plan.late_output) reason = late_output_misfit(params, plan);
  if (reason.empty()) reason = choose_sums(params, plan);
  if (!reason.empty()) fail(ErrorKind::kUnsupported, "kernel hopper_prefill: {}", reason);
  if (plan.tile.consumers == 1) plan.ping_pong = false;  // there is no other to take turns with
  const std::string lines = plan.tile.line != 0 && plan.tile.block_size == 0
                                ? fmt::format(", lines of {} bytes", plan.tile.line)
                                : "";
  plan.reason = fmt::format(
      "{} rows by {} keys, {} stages{}{}{}{}{}{}{}{}{}{}{}{}{}{}{}{}{}: {}", plan.tile_rows(),
      plan.tile.tile_n, plan.tile.stages, lines, plan.ping_pong ? ", in turns" : "",
      plan.tile.ahead ? ", ahead" : (plan.persistent ? ", persistent" : ""),
      plan.late_output ? ", late output" : "", plan.fixed_base ? ", at a fixed address" : "",
      plan.reverse ? ", every other head reversed" : "", plan.tail ? ", left over ones cut" : "",
      plan.cap > 0 ? fmt::format(", soft cap by form {}", plan.cap) : "",
      plan.tile.slope_products ? ", slopes by products"
      : plan.slopes > 0        ? ", slopes by distances in a tile"
                               : "",
      plan.fits_tiles ? ", tiles end with the window" : "",
      plan.bounds ? ", maxima by integers" : "", plan.ordered ? ", weights before waits" : "",
      plan.add_floats ? ", integers to f32 by additions" : "",
      plan.keep_columns ? ", codes by lanes that keep their columns" : "",
      plan.tile.values_apart ? ", values of f16 from pages of their own" : "",
      plan.unrolled ? ", a step for every stage" : "", sums_text(params, plan),
      options.empty() ? choice.reason : "as asked for");
  return plan;
}

}  // namespace attnbench::cuda
