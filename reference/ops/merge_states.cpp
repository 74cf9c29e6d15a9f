// Each (row, head) is independent; a template over the arithmetic serves f64 and the f32 yardstick.
// A weight of 0 skips its part, so that NaN in an empty part never reaches the sum.
#include "reference/ops/merge_states.h"

#include <algorithm>
#include <cmath>
#include <limits>

#include "core/system/parallel.h"

namespace attnbench {
namespace {

constexpr double kInfiniteLse = std::numeric_limits<double>::infinity();

float lse_of(const PartialState& state, const StateRows& rows, std::int64_t token,
             std::int64_t head) {
  return state.lse->data<float>()[state.first_lse + head * rows.num_tokens + token];
}

/// sum[d] += weight * part[d]; weight 0 keeps NaN out.
template <typename Real>
void add_weighted(const PartialState& state, const StateRows& rows, std::int64_t token,
                  std::int64_t head, Real weight, double* sum) {
  if (weight == 0) return;
  const std::int64_t first =
      state.first_output + (token * rows.num_heads + head) * state.head_stride;
  for (std::int64_t d = 0; d < rows.head_size; ++d) {
    const Real product = weight * static_cast<Real>(state.output->at(first + d));
    sum[d] = static_cast<Real>(sum[d]) + product;
  }
}

template <typename Body>
MergedState for_each_state(const StateRows& rows, Body body) {
  const std::size_t count = rows.rows.size();
  MergedState result;
  result.output.assign(count * static_cast<std::size_t>(rows.num_heads * rows.head_size), 0.0);
  result.lse.assign(count * static_cast<std::size_t>(rows.num_heads), -kInfiniteLse);
  constexpr std::int64_t kStatesPerTask = 64;
  const std::int64_t states = static_cast<std::int64_t>(count) * rows.num_heads;
  for_each_chunk(states, kStatesPerTask, [&](std::int64_t begin, std::int64_t end) {
    for (std::int64_t state = begin; state < end; ++state) {
      const auto i = static_cast<std::size_t>(state / rows.num_heads);
      const std::int64_t head = state % rows.num_heads;
      double& lse = result.lse[static_cast<std::size_t>(head) * count + i];
      body(rows.rows[i], head, result.output.data() + state * rows.head_size, lse);
    }
  });
  return result;
}

template <typename Real>
MergedState merge_in(const PartialState& prefix, const PartialState& suffix,
                     std::int64_t num_merged, const StateRows& rows) {
  const auto sanitised = [](float lse) {
    return std::isinf(lse) ? static_cast<Real>(-kInfiniteLse) : static_cast<Real>(lse);
  };
  return for_each_state(rows, [&](std::int64_t t, std::int64_t h, double* output, double& lse) {
    if (t >= num_merged) {
      add_weighted<Real>(suffix, rows, t, h, 1, output);
      lse = lse_of(suffix, rows, t, h);
      return;
    }
    const Real p = sanitised(lse_of(prefix, rows, t, h));
    const Real s = sanitised(lse_of(suffix, rows, t, h));
    const Real m =
        std::isnan(p) || std::isnan(s) ? std::numeric_limits<Real>::quiet_NaN() : std::max(p, s);
    if (m == static_cast<Real>(-kInfiniteLse)) return;
    const Real wp = std::exp(p - m);
    const Real ws = std::exp(s - m);
    add_weighted<Real>(prefix, rows, t, h, wp / (wp + ws), output);
    add_weighted<Real>(suffix, rows, t, h, ws / (wp + ws), output);
    lse = m + std::log(wp + ws);
  });
}

/// What the ranks of one (token, head) weigh.
template <typename Real>
struct RankWeights {
  std::vector<Real> weight;
  Real lse = static_cast<Real>(-kInfiniteLse);
};

template <typename Real>
RankWeights<Real> weights_of(std::span<const PartialState> ranks, LseBase base,
                             const StateRows& rows, std::int64_t token, std::int64_t head) {
  const auto power = [base](Real x) { return base == LseBase::kE ? std::exp(x) : std::exp2(x); };
  const Real none = static_cast<Real>(-kInfiniteLse);
  std::vector<Real> lses;
  for (const PartialState& rank : ranks) {
    const float lse = lse_of(rank, rows, token, head);
    lses.push_back(std::isnan(lse) || lse == kInfiniteLse ? none : static_cast<Real>(lse));
  }
  RankWeights<Real> result{std::vector<Real>(ranks.size(), 0), none};
  const Real m = *std::max_element(lses.begin(), lses.end());
  if (m == none) return result;
  Real sum = 0;
  for (const Real lse : lses) sum += power(lse - m);
  result.lse = m + (base == LseBase::kE ? std::log(sum) : std::log2(sum));
  for (std::size_t n = 0; n < lses.size(); ++n) result.weight[n] = power(lses[n] - result.lse);
  return result;
}

/// Ranks [first, last) of the sum.
template <typename Real>
MergedState sum_ranks(std::span<const PartialState> ranks, std::size_t first, std::size_t last,
                      LseBase base, const StateRows& rows) {
  return for_each_state(rows, [&](std::int64_t t, std::int64_t h, double* output, double& lse) {
    const RankWeights<Real> weights = weights_of<Real>(ranks, base, rows, t, h);
    for (std::size_t n = first; n < last; ++n) {
      add_weighted(ranks[n], rows, t, h, weights.weight[n], output);
    }
    lse = weights.lse;
  });
}

}  // namespace

MergedState merge_states(const PartialState& prefix, const PartialState& suffix,
                         std::int64_t num_merged, const StateRows& rows, Arithmetic arithmetic) {
  return arithmetic == Arithmetic::kF64 ? merge_in<double>(prefix, suffix, num_merged, rows)
                                        : merge_in<float>(prefix, suffix, num_merged, rows);
}

MergedState combine_states(std::span<const PartialState> ranks, LseBase base, const StateRows& rows,
                           Arithmetic arithmetic) {
  return arithmetic == Arithmetic::kF64 ? sum_ranks<double>(ranks, 0, ranks.size(), base, rows)
                                        : sum_ranks<float>(ranks, 0, ranks.size(), base, rows);
}

MergedState correct_state(std::span<const PartialState> ranks, std::size_t rank, LseBase base,
                          const StateRows& rows, Arithmetic arithmetic) {
  return arithmetic == Arithmetic::kF64 ? sum_ranks<double>(ranks, rank, rank + 1, base, rows)
                                        : sum_ranks<float>(ranks, rank, rank + 1, base, rows);
}

}  // namespace attnbench
