// For the tests: small MLA cases and semantics §8.3 as loops in long double. It shares no code with
// the reference: neither masks nor products.
#pragma once

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <limits>
#include <numeric>
#include <random>
#include <vector>

#include "core/tensor.h"
#include "reference/attention.h"
#include "reference/mla/inputs.h"

namespace attnbench {

class MlaRandom {
 public:
  explicit MlaRandom(std::uint64_t seed) : generator_(seed) {}
  /// In [low, high].
  int integer(int low, int high) {
    return low + static_cast<int>(generator_() % static_cast<std::uint64_t>(high - low + 1));
  }
  bool chance(int percent) { return integer(1, 100) <= percent; }
  template <typename T>
  T pick(std::initializer_list<T> values) {
    return values.begin()[integer(0, static_cast<int>(values.size()) - 1)];
  }
  float normal() { return normal_(generator_); }

 private:
  std::mt19937_64 generator_;
  std::normal_distribution<float> normal_;
};

/// A case that owns its arrays. kv_c and k_pe hold `padding` rows of NaN between requests, the
/// query as many after its last token.
struct NaiveMlaCase {
  MlaDims dims{1, 8, 4, 2, 4};
  int padding = 0;
  double softmax_scale = 0.5;
  std::int64_t num_decode_tokens = 0;
  std::vector<std::int32_t> query_start_loc{0};
  std::vector<std::int32_t> seq_lens;
  std::vector<std::int64_t> key_start_loc{0};
  Tensor query;
  Tensor kv_c;
  Tensor k_pe;
  Tensor w_uk;
  Tensor w_uv;
  Tensor topk_indices;                     // empty: dense
  std::vector<std::int32_t> topk_lengths;  // may be empty
  std::vector<float> sinks;                // may be empty
  Tensor latent_query;                     // empty: none

  void add_request(int query_len, int seq_len) {
    query_start_loc.push_back(query_start_loc.back() + query_len);
    seq_lens.push_back(seq_len);
    key_start_loc.push_back(key_start_loc.back() + seq_len + padding);
  }
  int num_tokens() const { return query_start_loc.back(); }

  void fill(Dtype dtype, MlaRandom& random) {
    const std::int64_t heads = dims.num_heads;
    const float nan = std::numeric_limits<float>::quiet_NaN();
    query = Tensor(dtype, {num_tokens() + padding, heads, dims.qk_head_dim()});
    kv_c = Tensor(dtype, {key_start_loc.back(), dims.kv_lora_rank});
    k_pe = Tensor(dtype, {key_start_loc.back(), dims.qk_rope_head_dim});
    w_uk = Tensor(dtype, {heads, dims.qk_nope_head_dim, dims.kv_lora_rank});
    w_uv = Tensor(dtype, {heads, dims.kv_lora_rank, dims.v_head_dim});
    const float factor = 1 / std::sqrt(static_cast<float>(dims.kv_lora_rank));
    for (Tensor* tensor : {&query, &kv_c, &k_pe}) {
      for (std::int64_t i = 0; i < tensor->num_elements(); ++i) tensor->set(i, random.normal());
    }
    for (Tensor* tensor : {&w_uk, &w_uv}) {
      for (std::int64_t i = 0; i < tensor->num_elements(); ++i) {
        tensor->set(i, random.normal() * factor);
      }
    }
    for (std::int64_t row = num_tokens(); row < query.dim(0); ++row) set_row(query, row, nan);
    for (std::size_t b = 0; b < seq_lens.size(); ++b) {
      for (std::int64_t i = 0; i < padding; ++i) {
        set_row(kv_c, key_start_loc[b] + seq_lens[b] + i, nan);
        set_row(k_pe, key_start_loc[b] + seq_lens[b] + i, nan);
      }
    }
  }

  static void set_row(Tensor& tensor, std::int64_t row, float value) {
    const std::int64_t width = tensor.num_elements() / tensor.dim(0);
    for (std::int64_t i = row * width; i < (row + 1) * width; ++i) tensor.set(i, value);
  }

  MlaReferenceInputs inputs() const {
    MlaReferenceInputs inputs;
    inputs.query = &query;
    inputs.kv_c = &kv_c;
    inputs.k_pe = &k_pe;
    inputs.w_uk = &w_uk;
    inputs.w_uv = &w_uv;
    if (!topk_indices.shape().empty()) inputs.topk_indices = &topk_indices;
    inputs.topk_lengths = topk_lengths;
    inputs.sinks = sinks;
    if (!latent_query.shape().empty()) inputs.latent_query = &latent_query;
    inputs.num_decode_tokens = num_decode_tokens;
    inputs.query_start_loc = query_start_loc;
    inputs.seq_lens = seq_lens;
    inputs.key_start_loc = key_start_loc;
    inputs.softmax_scale = softmax_scale;
    return inputs;
  }

  std::vector<std::int32_t> all_rows() const {
    std::vector<std::int32_t> rows(static_cast<std::size_t>(num_tokens()));
    std::iota(rows.begin(), rows.end(), 0);
    return rows;
  }
};

/// Decode requests of 0 to 4 tokens and padding rows first, then prefills with context, then
/// without.
inline NaiveMlaCase random_mla_case(std::uint64_t seed, int longest, Dtype dtype) {
  MlaRandom random(seed);
  NaiveMlaCase c;
  c.dims = {random.integer(1, 4), random.pick({8, 16, 24, 32}), random.pick({1, 4, 8, 12}),
            random.pick({1, 2, 8}), random.pick({1, 4, 8, 12})};
  c.padding = random.integer(0, 2);
  c.softmax_scale = random.pick({0.1, 0.4, 1.0, 3.0});
  for (int b = random.integer(0, 3); b > 0; --b) {
    const int seq_len = random.integer(1, longest);
    c.add_request(std::min(seq_len, random.pick({1, 1, 2, 4})), seq_len);
    if (random.chance(15)) c.add_request(0, seq_len);
    if (random.chance(15)) c.add_request(1, 0);
  }
  c.num_decode_tokens = c.num_tokens();
  for (int b = random.integer(0, 2); b > 0; --b) {
    const int query_len = random.integer(1, 12);
    c.add_request(query_len, query_len + random.integer(1, longest));
  }
  for (int b = random.integer(0, 1); b > 0; --b) {
    const int query_len = random.integer(1, 12);
    c.add_request(query_len, query_len);
  }
  c.fill(dtype, random);
  return c;
}

/// One (row, head).
struct NaiveMlaResult {
  std::vector<long double> output;  // [V]
  long double lse = -std::numeric_limits<long double>::infinity();
};

/// Positions that a row attends to, with repetition.
inline std::vector<std::int64_t> naive_mla_keys(const NaiveMlaCase& c, std::size_t request,
                                                std::int64_t row) {
  std::vector<std::int64_t> keys;
  const std::int64_t seq_len = c.seq_lens[request];
  if (c.topk_indices.shape().empty()) {
    const std::int64_t query_len = c.query_start_loc[request + 1] - c.query_start_loc[request];
    const std::int64_t i = row - c.query_start_loc[request];
    for (std::int64_t j = 0; j < seq_len; ++j) {
      if (j <= i + (seq_len - query_len)) keys.push_back(j);
    }
    return keys;
  }
  const std::int64_t topk = c.topk_indices.dim(1);
  const std::int64_t counted =
      c.topk_lengths.empty() ? topk : c.topk_lengths[static_cast<std::size_t>(row)];
  for (std::int64_t n = 0; n < counted; ++n) {
    const std::int64_t j = c.topk_indices.data<std::int32_t>()[row * topk + n];
    if (j >= 0 && j < seq_len) keys.push_back(j);
  }
  return keys;
}

/// Compute-friendly form of §8.3 with every product written out.
inline NaiveMlaResult naive_mla(const NaiveMlaCase& c, std::size_t request, std::int64_t row,
                                std::int64_t head) {
  const MlaDims& d = c.dims;
  const auto scores_of = [&](std::int64_t entry) {
    long double score = 0;
    if (!c.latent_query.shape().empty() && row < c.num_decode_tokens) {
      for (std::int64_t l = 0; l < d.entry_size(); ++l) {
        const float key = l < d.kv_lora_rank
                              ? c.kv_c.at(entry * d.kv_lora_rank + l)
                              : c.k_pe.at(entry * d.qk_rope_head_dim + l - d.kv_lora_rank);
        score += static_cast<long double>(
                     c.latent_query.at((row * d.num_heads + head) * d.entry_size() + l)) *
                 key;
      }
      return score;
    }
    const std::int64_t query = (row * d.num_heads + head) * d.qk_head_dim();
    for (std::int64_t p = 0; p < d.qk_nope_head_dim; ++p) {
      long double k_nope = 0;
      for (std::int64_t l = 0; l < d.kv_lora_rank; ++l) {
        k_nope += static_cast<long double>(c.kv_c.at(entry * d.kv_lora_rank + l)) *
                  c.w_uk.at((head * d.qk_nope_head_dim + p) * d.kv_lora_rank + l);
      }
      score += c.query.at(query + p) * k_nope;
    }
    for (std::int64_t r = 0; r < d.qk_rope_head_dim; ++r) {
      score += static_cast<long double>(c.query.at(query + d.qk_nope_head_dim + r)) *
               c.k_pe.at(entry * d.qk_rope_head_dim + r);
    }
    return score;
  };
  NaiveMlaResult result;
  result.output.assign(static_cast<std::size_t>(d.v_head_dim), 0.0L);
  const std::vector<std::int64_t> keys = naive_mla_keys(c, request, row);
  if (keys.empty()) return result;
  std::vector<long double> scores;
  for (const std::int64_t j : keys) {
    scores.push_back(c.softmax_scale * scores_of(c.key_start_loc[request] + j));
  }
  const long double m = *std::max_element(scores.begin(), scores.end());
  long double sum = 0;
  for (const long double score : scores) sum += std::exp(score - m);
  result.lse = m + std::log(sum);
  for (std::size_t n = 0; n < keys.size(); ++n) {
    const std::int64_t entry = c.key_start_loc[request] + keys[n];
    for (std::int64_t v = 0; v < d.v_head_dim; ++v) {
      long double value = 0;
      for (std::int64_t l = 0; l < d.kv_lora_rank; ++l) {
        value += static_cast<long double>(c.kv_c.at(entry * d.kv_lora_rank + l)) *
                 c.w_uv.at((head * d.kv_lora_rank + l) * d.v_head_dim + v);
      }
      result.output[static_cast<std::size_t>(v)] += std::exp(scores[n] - m) / sum * value;
    }
  }
  if (!c.sinks.empty()) {
    const long double sink = c.sinks[static_cast<std::size_t>(head)];
    for (long double& o : result.output) o /= 1 + std::exp(sink - result.lse);
  }
  return result;
}

/// Largest error of `result` in units of 1e-12 * (1 + |exact|); infinite where a NaN or an infinity
/// is in the wrong place.
inline double worst_mla_error(const NaiveMlaCase& c, const ReferenceOutput& result) {
  long double worst = 0;
  const auto compare = [&](double actual, long double exact) {
    if (static_cast<long double>(actual) == exact) return;
    const long double error =
        std::abs(static_cast<long double>(actual) - exact) / (1e-12L * (1 + std::abs(exact)));
    worst =
        std::isnan(error) ? std::numeric_limits<long double>::infinity() : std::max(worst, error);
  };
  const auto num_rows = static_cast<std::int64_t>(result.rows.size());
  for (std::size_t b = 0; b < c.seq_lens.size(); ++b) {
    for (std::int64_t i = 0; i < num_rows; ++i) {
      const std::int64_t row = result.rows[static_cast<std::size_t>(i)];
      if (row < c.query_start_loc[b] || row >= c.query_start_loc[b + 1]) continue;
      for (std::int64_t head = 0; head < c.dims.num_heads; ++head) {
        const NaiveMlaResult exact = naive_mla(c, b, row, head);
        compare(result.lse[static_cast<std::size_t>(head * num_rows + i)], exact.lse);
        for (std::int64_t v = 0; v < c.dims.v_head_dim; ++v) {
          compare(result.output[static_cast<std::size_t>(
                      (i * c.dims.num_heads + head) * c.dims.v_head_dim + v)],
                  exact.output[static_cast<std::size_t>(v)]);
        }
      }
    }
  }
  return static_cast<double>(worst);
}

/// Largest difference of two results in units of 1e-12 * (1 + |value|).
inline double worst_difference(const ReferenceOutput& a, const ReferenceOutput& b) {
  if (a.rows != b.rows || a.output.size() != b.output.size()) {
    return std::numeric_limits<double>::infinity();
  }
  double worst = 0;
  const auto compare = [&](const std::vector<double>& first, const std::vector<double>& second) {
    for (std::size_t i = 0; i < first.size(); ++i) {
      if (first[i] == second[i]) continue;
      const double error = std::abs(first[i] - second[i]) / (1e-12 * (1 + std::abs(second[i])));
      worst = std::isnan(error) ? std::numeric_limits<double>::infinity() : std::max(worst, error);
    }
  };
  compare(a.output, b.output);
  compare(a.lse, b.lse);
  return worst;
}

}  // namespace attnbench
