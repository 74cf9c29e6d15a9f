// A part whose weight is 0 is skipped and not multiplied: a rank without keys may hold NaN there.
#include "reference/mla/partial_states.h"

#include <algorithm>
#include <cmath>
#include <limits>
#include <vector>

#include "core/error.h"
#include "reference/mla/forms.h"

namespace attnbench {
namespace {

constexpr double kInfinitePartialLse = std::numeric_limits<double>::infinity();

void check_same_shape(const ReferenceOutput& a, const ReferenceOutput& b) {
  if (a.rows != b.rows || a.num_heads != b.num_heads || a.v_head_size != b.v_head_size) {
    fail(ErrorKind::kShape, "partial results: expected {} rows of [{}, {}], got {} of [{}, {}]",
         a.rows.size(), a.num_heads, a.v_head_size, b.rows.size(), b.num_heads, b.v_head_size);
  }
}

/// sum += weight * part, where weight 0 keeps NaN out.
void add_weighted(const double* part, double weight, int count, double* sum) {
  if (weight == 0) return;
  for (int d = 0; d < count; ++d) sum[d] += weight * part[d];
}

/// m + ln sum e^(lse_n - m); -inf when all are.
double log_sum_exp(std::span<const double> lses) {
  const double m = *std::max_element(lses.begin(), lses.end());
  if (m == -kInfinitePartialLse) return m;
  double sum = 0;
  for (const double lse : lses) sum += std::exp(lse - m);
  return m + std::log(sum);
}

}  // namespace

ReferenceOutput combine_partials(std::span<const ReferenceOutput> parts) {
  for (const ReferenceOutput& part : parts) check_same_shape(parts[0], part);
  ReferenceOutput result = empty_output(parts[0].rows, parts[0].num_heads, parts[0].v_head_size);
  const std::size_t num_rows = result.rows.size();
  const auto num_heads = static_cast<std::size_t>(result.num_heads);
  const auto width = static_cast<std::size_t>(result.v_head_size);
  std::vector<double> lses(parts.size());
  for (std::size_t head = 0; head < num_heads; ++head) {
    for (std::size_t row = 0; row < num_rows; ++row) {
      for (std::size_t n = 0; n < parts.size(); ++n) {
        const double lse = parts[n].lse[head * num_rows + row];
        lses[n] = std::isnan(lse) || lse == kInfinitePartialLse ? -kInfinitePartialLse : lse;
      }
      const double lse = log_sum_exp(lses);
      result.lse[head * num_rows + row] = lse;
      if (lse == -kInfinitePartialLse) continue;
      const std::size_t first = (row * num_heads + head) * width;
      for (std::size_t n = 0; n < parts.size(); ++n) {
        add_weighted(parts[n].output.data() + first, std::exp(lses[n] - lse), result.v_head_size,
                     result.output.data() + first);
      }
    }
  }
  return result;
}

ReferenceOutput merge_partials(const ReferenceOutput& prefix, const ReferenceOutput& suffix,
                               std::int32_t merge_end) {
  check_same_shape(prefix, suffix);
  ReferenceOutput result = suffix;
  const std::size_t num_rows = result.rows.size();
  const auto num_heads = static_cast<std::size_t>(result.num_heads);
  const auto width = static_cast<std::size_t>(result.v_head_size);
  for (std::size_t head = 0; head < num_heads; ++head) {
    for (std::size_t row = 0; row < num_rows; ++row) {
      if (result.rows[row] >= merge_end) continue;
      const std::size_t at = head * num_rows + row;
      const double p = std::isinf(prefix.lse[at]) ? -kInfinitePartialLse : prefix.lse[at];
      const double s = std::isinf(suffix.lse[at]) ? -kInfinitePartialLse : suffix.lse[at];
      const double m = std::isnan(p) || std::isnan(s) ? p + s : std::max(p, s);
      const std::size_t first = (row * num_heads + head) * width;
      double* const output = result.output.data() + first;
      std::fill_n(output, width, 0.0);
      result.lse[at] = m;
      if (m == -kInfinitePartialLse) continue;
      const double prefix_weight = std::exp(p - m);
      const double suffix_weight = std::exp(s - m);
      const double sum = prefix_weight + suffix_weight;
      result.lse[at] = m + std::log(sum);
      add_weighted(prefix.output.data() + first, prefix_weight / sum, result.v_head_size, output);
      add_weighted(suffix.output.data() + first, suffix_weight / sum, result.v_head_size, output);
    }
  }
  return result;
}

ReferenceOutput slice_heads(const ReferenceOutput& whole, int begin, int end) {
  ReferenceOutput part = empty_output(whole.rows, end - begin, whole.v_head_size);
  const std::size_t num_rows = whole.rows.size();
  const auto width = static_cast<std::size_t>(whole.v_head_size);
  const auto count = static_cast<std::size_t>(end - begin);
  const auto first = static_cast<std::size_t>(begin);
  const auto num_heads = static_cast<std::size_t>(whole.num_heads);
  std::copy_n(whole.lse.data() + first * num_rows, count * num_rows, part.lse.data());
  for (std::size_t row = 0; row < num_rows; ++row) {
    std::copy_n(whole.output.data() + (row * num_heads + first) * width, count * width,
                part.output.data() + row * count * width);
  }
  return part;
}

}  // namespace attnbench
