// For the tests: small attention cases and semantics §3.1 as a triple loop in long double. It
// shares no code with the reference, masks included.
#pragma once

#include <cmath>
#include <cstdint>
#include <limits>
#include <numeric>
#include <vector>

#include "core/tensor.h"
#include "reference/attention.h"

namespace attnbench {

/// A case that owns its arrays. Key and value hold `key_padding` rows of NaN between requests, the
/// query as many after its last token.
struct NaiveCase {
  AttentionMath math;
  int num_heads = 1;
  int num_kv_heads = 1;
  int head_size = 1;
  int v_head_size = 1;
  int key_padding = 0;
  std::vector<std::int32_t> query_start_loc{0};
  std::vector<std::int32_t> seq_lens;
  std::vector<std::int64_t> key_start_loc{0};
  Tensor query;
  Tensor key;
  Tensor value;
  std::vector<float> sinks;
  std::vector<float> alibi_slopes;

  void add_request(int query_len, int seq_len) {
    query_start_loc.push_back(query_start_loc.back() + query_len);
    seq_lens.push_back(seq_len);
    key_start_loc.push_back(key_start_loc.back() + seq_len + key_padding);
  }
  int num_tokens() const { return query_start_loc.back(); }

  /// Allocates the tensors and fills them with next(); everything outside the requests is NaN.
  template <typename Next>
  void fill(Dtype dtype, const Next& next) {
    query = Tensor(dtype, {num_tokens() + key_padding, num_heads, head_size});
    key = Tensor(dtype, {key_start_loc.back(), num_kv_heads, head_size});
    value = Tensor(dtype, {key_start_loc.back(), num_kv_heads, v_head_size});
    for (Tensor* tensor : {&query, &key, &value}) {
      for (std::int64_t i = 0; i < tensor->num_elements(); ++i) {
        tensor->set(i, std::numeric_limits<float>::quiet_NaN());
      }
    }
    fill_rows(query, 0, num_tokens(), next);
    for (std::size_t b = 0; b < seq_lens.size(); ++b) {
      fill_rows(key, key_start_loc[b], seq_lens[b], next);
      fill_rows(value, key_start_loc[b], seq_lens[b], next);
    }
  }

  ReferenceInputs inputs() const {
    ReferenceInputs inputs;
    inputs.query = &query;
    inputs.key = &key;
    inputs.value = &value;
    inputs.query_start_loc = query_start_loc;
    inputs.seq_lens = seq_lens;
    inputs.key_start_loc = key_start_loc;
    inputs.sinks = sinks;
    inputs.alibi_slopes = alibi_slopes;
    return inputs;
  }

  std::vector<std::int32_t> all_rows() const {
    std::vector<std::int32_t> rows(static_cast<std::size_t>(num_tokens()));
    std::iota(rows.begin(), rows.end(), 0);
    return rows;
  }

 private:
  template <typename Next>
  static void fill_rows(Tensor& tensor, std::int64_t first, std::int64_t count, const Next& next) {
    const std::int64_t width = tensor.dim(1) * tensor.dim(2);
    for (std::int64_t i = first * width; i < (first + count) * width; ++i) tensor.set(i, next());
  }
};

/// One (row, head).
struct NaiveResult {
  std::vector<long double> output;  // [Dv]
  long double lse = 0;
  long double largest_score = 0;  // magnitude
};

inline bool naive_allowed(const AttentionMath& math, std::size_t request, std::int64_t p,
                          std::int64_t j) {
  const bool causal = !math.causal || j <= p;
  const bool window = (math.window_left < 0 || j >= p - math.window_left) &&
                      (math.window_right < 0 || j <= p + math.window_right);
  const bool chunk = math.chunk_size <= 0 || j / math.chunk_size == p / math.chunk_size;
  if (causal && window && chunk) return true;
  if (math.mm_prefix_ranges.empty()) return false;
  for (const auto& [start, end] : math.mm_prefix_ranges[request]) {
    if (start < end && start <= p && p <= end && start <= j && j <= end) return true;
  }
  return false;
}

inline long double naive_bias(AlibiForm form, long double slope, std::int64_t p, std::int64_t j,
                              std::int64_t context_len) {
  switch (form) {
    case AlibiForm::kNone:
      return 0;
    case AlibiForm::kKeyIndex:
      return slope * static_cast<long double>(j);
    case AlibiForm::kContextRelative:
      return slope * static_cast<long double>(j - context_len);
    case AlibiForm::kDistance:
      return -slope * static_cast<long double>(p > j ? p - j : j - p);
    case AlibiForm::kSqrt:
      return j <= p ? -slope * std::sqrt(static_cast<long double>(p - j)) : 0.0L;
  }
  return 0;
}

inline long double naive_score(const NaiveCase& c, std::size_t request, std::int64_t row,
                               std::int64_t head, std::int64_t p, std::int64_t j) {
  const std::int64_t kv_head = head / (c.num_heads / c.num_kv_heads);
  const std::int64_t key_row = c.key_start_loc[request] + j;
  long double dot = 0;
  for (std::int64_t d = 0; d < c.head_size; ++d) {
    dot += static_cast<long double>(c.query.at((row * c.num_heads + head) * c.head_size + d)) *
           c.key.at((key_row * c.num_kv_heads + kv_head) * c.head_size + d);
  }
  long double score = c.math.softmax_scale * dot;
  const long double cap = c.math.logits_soft_cap;
  if (cap > 0) score = cap * std::tanh(score / cap);
  if (c.math.alibi == AlibiForm::kNone) return score;
  const std::int64_t query_len = c.query_start_loc[request + 1] - c.query_start_loc[request];
  return score + naive_bias(c.math.alibi, c.alibi_slopes[static_cast<std::size_t>(head)], p, j,
                            c.seq_lens[request] - query_len);
}

/// Semantics §3.1 steps 1 to 6 with §3.5 and §3.8 for finite inputs.
inline NaiveResult naive_attention(const NaiveCase& c, std::size_t request, std::int64_t row,
                                   std::int64_t head) {
  constexpr long double kInfinity = std::numeric_limits<long double>::infinity();
  NaiveResult result;
  result.output.assign(static_cast<std::size_t>(c.v_head_size), 0.0L);
  const std::int64_t p = row - c.query_start_loc[request + 1] + c.seq_lens[request];
  const long double sink = c.sinks.empty() ? -kInfinity : c.sinks[static_cast<std::size_t>(head)];
  std::vector<std::int64_t> keys;
  std::vector<long double> scores;
  long double m = sink;
  for (std::int64_t j = 0; j < c.seq_lens[request]; ++j) {
    if (!naive_allowed(c.math, request, p, j)) continue;
    keys.push_back(j);
    scores.push_back(naive_score(c, request, row, head, p, j));
    m = std::max(m, scores.back());
    result.largest_score = std::max(result.largest_score, std::abs(scores.back()));
  }
  result.lse = m;
  if (std::isinf(m)) return result;
  long double sum = std::exp(sink - m);
  for (const long double score : scores) sum += std::exp(score - m);
  const std::int64_t kv_head = head / (c.num_heads / c.num_kv_heads);
  for (std::size_t i = 0; i < keys.size(); ++i) {
    const std::int64_t key_row = c.key_start_loc[request] + keys[i];
    for (std::int64_t d = 0; d < c.v_head_size; ++d) {
      result.output[static_cast<std::size_t>(d)] +=
          std::exp(scores[i] - m) / sum *
          c.value.at((key_row * c.num_kv_heads + kv_head) * c.v_head_size + d);
    }
  }
  result.lse = m + std::log(sum);
  return result;
}

/// Largest error of `result` (all rows) in units of 1e-12 * (1 + |exact|), where scores beyond 50
/// widen the unit in proportion: their own rounding does. Infinite where NaN or infinity differ.
inline double worst_error(const NaiveCase& c, const ReferenceOutput& result) {
  long double worst = 0;
  const auto compare = [&](double actual, long double exact, long double largest_score) {
    if (std::isinf(exact) && static_cast<long double>(actual) == exact) return;
    const long double unit = 1e-12L * (1 + std::abs(exact)) * std::max(1.0L, largest_score / 50);
    const long double error = std::abs(static_cast<long double>(actual) - exact) / unit;
    if (!(error <= worst))
      worst = std::isnan(error) ? std::numeric_limits<double>::infinity() : error;
  };
  const auto num_rows = static_cast<std::int64_t>(result.rows.size());
  for (std::size_t b = 0; b < c.seq_lens.size(); ++b) {
    for (std::int64_t i = 0; i < num_rows; ++i) {
      const std::int64_t row = result.rows[static_cast<std::size_t>(i)];
      if (row < c.query_start_loc[b] || row >= c.query_start_loc[b + 1]) continue;
      for (std::int64_t head = 0; head < c.num_heads; ++head) {
        const NaiveResult exact = naive_attention(c, b, row, head);
        compare(result.lse[static_cast<std::size_t>(head * num_rows + i)], exact.lse,
                exact.largest_score);
        const std::int64_t first = (i * c.num_heads + head) * c.v_head_size;
        for (std::int64_t d = 0; d < c.v_head_size; ++d) {
          compare(result.output[static_cast<std::size_t>(first + d)],
                  exact.output[static_cast<std::size_t>(d)], exact.largest_score);
        }
      }
    }
  }
  return static_cast<double>(worst);
}

}  // namespace attnbench
