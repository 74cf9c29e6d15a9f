// The three passes of a tile: maximum, factors, exponentials with their sum. Each runs over the
// rows of a key inside, over the keys outside, so that a row's sum is in the order of its keys.
#include "ops/cpu/attention/online_softmax.h"

#include <algorithm>

#include "ops/cpu/attention/fast_exp.h"

namespace attnbench::cpu {
namespace {

/// tile_max = max(m, scores); NaN scores are passed over here and show in P.
void find_max(int keys, Scratch& scratch) {
  const int rows = scratch.row_stride;
  float* maximum = scratch.tile_max.data();
  std::copy_n(scratch.row_max.data(), rows, maximum);
  const float* scores = scratch.scores.data();
  for (int i = 0; i < keys; ++i, scores += rows) {
    for (int r = 0; r < rows; ++r) maximum[r] = scores[r] > maximum[r] ? scores[r] : maximum[r];
  }
}

/// Replaces m by tile_max, and tile_max by what scores are taken relative to.
void advance_max(Scratch& scratch) {
  for (int r = 0; r < scratch.row_stride; ++r) {
    const auto row = static_cast<std::size_t>(r);
    const float m_old = scratch.row_max[row];
    const float m_new = scratch.tile_max[row];
    // Why: a row that has seen no key has m = -inf, and (-inf) - (-inf) is NaN.
    const float base = m_new == kNegInf ? 0.0f : m_new;
    scratch.rescale[row] = m_old == m_new ? 1.0f : exp_nonpositive(m_old - base);
    scratch.row_max[row] = m_new;
    scratch.tile_max[row] = base;
  }
}

/// scores <- e^(scores - base), tile_sum = their sum.
void exponentiate(int keys, Scratch& scratch) {
  const int rows = scratch.row_stride;
  const float* base = scratch.tile_max.data();
  float* sum = scratch.tile_sum.data();
  std::fill_n(sum, rows, 0.0f);
  float* scores = scratch.scores.data();
  for (int i = 0; i < keys; ++i, scores += rows) {
    for (int r = 0; r < rows; ++r) {
      const float p = exp_nonpositive(scores[r] - base[r]);
      scores[r] = p;
      sum[r] += p;
    }
  }
}

}  // namespace

void fold_scores(int keys, Scratch& scratch) {
  find_max(keys, scratch);
  advance_max(scratch);
  exponentiate(keys, scratch);
  for (int r = 0; r < scratch.row_stride; ++r) {
    const auto row = static_cast<std::size_t>(r);
    scratch.row_sum[row] = scratch.row_sum[row] * scratch.rescale[row] + scratch.tile_sum[row];
  }
}

void rescale_output(int v_head_size, Scratch& scratch) {
  const float* factor = scratch.rescale.data();
  const int rows = scratch.num_rows;
  if (std::all_of(factor, factor + rows, [](float f) { return f == 1.0f; })) return;
  float* output = scratch.output.data();
  if (scratch.small) {
    for (int r = 0; r < rows; ++r, output += v_head_size) {
      for (int d = 0; d < v_head_size; ++d) output[d] *= factor[r];
    }
    return;
  }
  for (int d = 0; d < v_head_size; ++d, output += scratch.row_stride) {
    for (int r = 0; r < scratch.row_stride; ++r) output[r] *= factor[r];
  }
}

}  // namespace attnbench::cpu
