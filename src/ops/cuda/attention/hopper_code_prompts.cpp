#include "ops/cuda/attention/hopper_code_prompts.h"

#include "ops/cuda/attention/hopper_tile_choice.h"

namespace attnbench::cuda {
namespace {

/// 2 x 8,192 tokens of e4m3 with P of 16 bits, D64 1005 and 977, D128 1435 and 1397, D256 3268 and
/// 4745; one of 16,384 D64 1828 and 1856, D128 2690 and 2680.
constexpr std::int64_t kMostKeys = 8192;
constexpr std::int64_t kMostKeysElsewhere = 4096;
constexpr std::int64_t kMostKeysOfInt8 = 2048;  // of 128 columns
constexpr std::int64_t kMostKeysOfPieces = 1024;
constexpr std::int64_t kMostKeysOfWidePieces = 2048;  // of 256 columns
/// Up to so many, tiles of 64 keys leave out more of those that no row sees: P of 16 bits, 128 x
/// 256 of D128 by 80 keys 312 us, by 64 291, 32 x 1,024 529 and 540.
constexpr std::int64_t kFewKeys = 512;
/// From so many keys on maxima are found by integers: P of 16 bits, D64, 32 x 1,024 403 us and 404
/// with it, 8 x 2,048 323 and 314; D128, 32 x 1,024 529 and 520, 128 x 256 312 and 314.
constexpr std::int64_t kLeastBoundKeys = 1024;

bool is_size(const attn::AttendParams& params, int columns) {
  return params.head_size == columns && params.v_head_size == columns;
}

/// Of e4m3 scores beside weights of 16 bits.
std::optional<CodePrompt> wide_prompt(const attn::AttendParams& params) {
  const std::int64_t keys = keys_of_row(params);
  const bool is_window = has_window(params);
  if (keys > kMostKeys) return std::nullopt;
  if (is_size(params, 64)) {
    if (is_window) return CodePrompt{64, 2, true, false, false};
    return CodePrompt{96, 2, true, false, keys > kLeastBoundKeys};
  }
  if (is_size(params, 128)) {
    // Late, with values apart, 486 bytes spill, else 320.
    if (is_window) return CodePrompt{80, 2, false, !has_values_apart(params), false};
    if (keys <= kFewKeys) return CodePrompt{64, 2, false, true, false};
    return CodePrompt{80, 3, false, true, keys >= kLeastBoundKeys};
  }
  if (is_size(params, 256) && keys <= kMostKeysElsewhere) {
    if (has_values_apart(params)) return CodePrompt{64, 2, false, false, true};  // as of level 2
    return CodePrompt{64, 2, true, false, false};
  }
  return std::nullopt;
}

std::optional<CodePrompt> int8_prompt(const attn::AttendParams& params) {
  const std::int64_t keys = keys_of_row(params);
  const bool is_level_2 = value_element(params) != attn::Element::kI8;
  if (has_window(params) || keys > kMostKeysElsewhere ||
      max_packed_rows(params) <= attn::kConsumerRows) {
    return std::nullopt;
  }
  if (is_size(params, 64)) {
    return CodePrompt{keys <= kFewKeys ? 64 : 96, 3, false, false, is_level_2};
  }
  if (is_size(params, 128) && keys <= kMostKeysOfInt8) {
    // Values apart, which need no looking over: with maxima by integers 600 bytes spill.
    const bool bounds = is_level_2 && !has_values_apart(params);
    return CodePrompt{is_level_2 && keys <= kFewKeys ? 64 : 80, 2, false, false, bounds};
  }
  if (is_size(params, 256)) return CodePrompt{64, 2, false, false, is_level_2};
  return std::nullopt;
}

}  // namespace

bool sums_by_pieces(const attn::AttendParams& params) {
  // Heads of 256 columns have pieces in any case.
  const bool is_measured = is_size(params, 64) || is_size(params, 128) || is_size(params, 256);
  const std::int64_t most = is_size(params, 256) ? kMostKeysOfWidePieces : kMostKeysOfPieces;
  return has_e4m3_products(params) && params.fast_fp8_sums == 0 && is_measured &&
         is_paged(params) && is_causal(params) && !has_window(params) &&
         params.score.mm_ranges == nullptr && params.batch_invariant == 0 &&
         hopper_ahead_misfit(params).empty() && keys_of_row(params) <= most;
}

std::optional<CodePrompt> code_prompt(const attn::AttendParams& params, const HopperPlan& forms) {
  const bool is_plain = !forms.scales_first && forms.cap == 0 && forms.slopes == 0 &&
                        params.score.mm_ranges == nullptr && params.score.soft_cap <= 0.0f;
  if (operand_bytes(params) != 1 || !is_plain || !is_paged(params) || !is_causal(params) ||
      params.batch_invariant != 0 || !hopper_ahead_misfit(params).empty()) {
    return std::nullopt;
  }
  if (has_int8_scores(params)) return int8_prompt(params);
  if (has_wide_values(params)) return wide_prompt(params);
  if (!sums_by_pieces(params)) return std::nullopt;
  if (is_size(params, 128)) return CodePrompt{96, 2, false, false, false};
  return CodePrompt{is_size(params, 64) ? 96 : 64, 3, false, false, false};
}

}  // namespace attnbench::cuda
