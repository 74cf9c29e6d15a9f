#include "ops/cuda/attention/hopper_wide_values.h"

#include <fmt/format.h>

#include <cstdint>

#include "ops/cuda/attention/hopper_tile_choice.h"

namespace attnbench::cuda {
namespace {

/// From so many columns on a row tile has the rows of two consumers.
constexpr int kLeastWideColumns = 129;
/// Between these, int8 of more keys a row than that: 4 x 4,096 tokens gain 64 us for 17 of
/// converting, 8 x 2,048 gain 14.
constexpr int kLeastNarrowColumns = 97;
constexpr std::int64_t kLeastKeys = 2049;

/// Such a tile of rows takes its time for other things than values.
bool transforms_scores(const attn::AttendParams& params) {
  return params.score.soft_cap > 0.0f || params.score.alibi != attn::Alibi::kNone ||
         params.score.mm_ranges != nullptr || scales_first(params);
}

}  // namespace

WideValuesChoice wide_values_pay(const attn::AttendParams& params) {
  if (params.batch_invariant != 0) return {false, "bytes may not depend on the batch"};
  if (transforms_scores(params)) {
    return {false, "what transforms scores takes longer than converting values"};
  }
  const int columns = params.v_head_size;
  if (columns >= kLeastWideColumns) {
    return {true, fmt::format("columns of {}: converting them for every 128 rows takes longer than "
                              "the products",
                              columns)};
  }
  if (columns < kLeastNarrowColumns) {
    return {false, fmt::format("columns of {}: converting hides behind the products", columns)};
  }
  if (!has_int8_scores(params)) {
    return {false, fmt::format("columns of {} of e4m3: not measured", columns)};
  }
  const std::int64_t keys = keys_of_row(params);
  const bool pays = keys >= kLeastKeys;
  return {pays, fmt::format("columns of {} and {} keys a row: the products gain {} than converting "
                            "in front takes",
                            columns, keys, pays ? "more" : "no more")};
}

}  // namespace attnbench::cuda
