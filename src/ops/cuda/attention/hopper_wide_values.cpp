#include "ops/cuda/attention/hopper_wide_values.h"

#include <fmt/format.h>

#include "ops/cuda/attention/hopper_tile_choice.h"

namespace attnbench::cuda {
namespace {

/// Up to so many, two warps convert a tile of values in the time of its products.
constexpr int kMostHiddenColumns = 64;
/// Up to so many a row tile has the rows of three consumers, beyond of two.
constexpr int kMostColumnsOfThree = 128;

/// Such a tile of rows takes its time for other things than values, and was not measured over pages
/// of values.
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
  if (columns <= kMostHiddenColumns) {
    return {false, fmt::format("columns of {}: converting hides behind the products", columns)};
  }
  const int rows = attn::kConsumerRows * (columns <= kMostColumnsOfThree ? 3 : 2);
  return {true,
          fmt::format("columns of {}: converting them for every {} rows takes longer than the "
                      "products",
                      columns, rows)};
}

}  // namespace attnbench::cuda
