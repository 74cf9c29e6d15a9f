// Small random MLA decode problems for tests, with the answer computed naively in double from the
// list of slots that each token attends to.
#pragma once

#include <fmt/format.h>

#include <cmath>
#include <cstdint>
#include <cstring>
#include <limits>
#include <string>
#include <vector>

#include "kernels/params_mla.h"
#include "ops/cpu/tensor_testing.h"

namespace attnbench::cpu {

/// Entries [kv_c | k_pe] in blocks of 16 slots, request after request in descending blocks.
class MlaDecode {
 public:
  static constexpr int kBlockSize = 16;

  MlaDecode(std::vector<int> query_lens, std::vector<int> lens, int heads, int latent_size = 512,
            int rope_size = 64, Dtype dtype = Dtype::kF32)
      : seq_lens(std::move(lens)), num_heads(heads), latent(latent_size), rope(rope_size) {
    query_start_loc = {0};
    int columns = 1;
    int num_blocks = 1;
    for (std::size_t b = 0; b < seq_lens.size(); ++b) {
      query_start_loc.push_back(query_start_loc.back() + query_lens[b]);
      columns = std::max(columns, (seq_lens[b] + kBlockSize - 1) / kBlockSize);
      num_blocks += (seq_lens[b] + kBlockSize - 1) / kBlockSize;
    }
    num_tokens = query_start_loc.back();
    block_table.assign(seq_lens.size() * static_cast<std::size_t>(columns), -1);
    int next = num_blocks;
    for (std::size_t b = 0; b < seq_lens.size(); ++b) {
      for (int c = 0; c * kBlockSize < seq_lens[b]; ++c) {
        block_table[b * static_cast<std::size_t>(columns) + static_cast<std::size_t>(c)] = --next;
      }
    }
    num_slots = std::int64_t{num_blocks} * kBlockSize;
    query = random_tensor(dtype, {num_tokens, heads, width()}, 11);
    fill_cache(dtype);
    output = poisoned_tensor(Dtype::kF32, {num_tokens + 1, heads, latent});
    lse = poisoned_tensor(Dtype::kF32, {heads, num_tokens + 1});
    set_params(columns);
  }
  MlaDecode(const MlaDecode&) = delete;
  MlaDecode& operator=(const MlaDecode&) = delete;

  int width() const { return latent + rope; }

  /// New contents for the cache; slots of no request stay NaN.
  void fill_cache(Dtype dtype) {
    const Tensor values = random_tensor(dtype, {num_slots, width()}, 12);
    cache = poisoned_tensor(dtype, {num_slots, width()});
    for (std::size_t b = 0; b < seq_lens.size(); ++b) {
      for (int j = 0; j < seq_lens[b]; ++j) {
        const std::int64_t first = slot(static_cast<int>(b), j) * width();
        for (int d = 0; d < width(); ++d) cache.set(first + d, values.at(first + d));
      }
    }
    params.kv.element = element_of(dtype);
    params.kv.key = params.kv.value = cache.bytes();
  }

  std::int64_t slot(int request, int position) const {
    const auto columns = block_table.size() / seq_lens.size();
    const std::size_t at = static_cast<std::size_t>(request) * columns +
                           static_cast<std::size_t>(position / kBlockSize);
    return std::int64_t{block_table[at]} * kBlockSize + position % kBlockSize;
  }

  /// Slots that each token sees causally, bottom-right aligned.
  std::vector<std::vector<std::int64_t>> causal_slots() const {
    std::vector<std::vector<std::int64_t>> lists;
    for (std::size_t b = 0; b < seq_lens.size(); ++b) {
      const int query_len = query_start_loc[b + 1] - query_start_loc[b];
      for (int i = 0; i < query_len; ++i) {
        lists.emplace_back();
        for (int j = 0; j <= seq_lens[b] - query_len + i; ++j) {
          lists.back().push_back(slot(static_cast<int>(b), j));
        }
      }
    }
    return lists;
  }

  /// Empty when output and LSE are attention over `slots` of each token, else where they are not.
  /// Scores are score_scale * (q . k), values value_scale * v of the cache as f32.
  std::string difference(const std::vector<std::vector<std::int64_t>>& slots, double score_scale,
                         double value_scale, double tolerance) const {
    std::vector<double> expected(static_cast<std::size_t>(latent));
    for (int t = 0; t < num_tokens; ++t) {
      for (int h = 0; h < num_heads; ++h) {
        const double expected_lse =
            solve(t, h, slots[static_cast<std::size_t>(t)], score_scale, value_scale, expected);
        const double actual_lse = double{lse.at(std::int64_t{h} * (num_tokens + 1) + t)};
        if (!close(actual_lse, expected_lse, tolerance)) {
          return fmt::format("lse[{}, {}] is {}, expected {}", h, t, actual_lse, expected_lse);
        }
        for (int d = 0; d < latent; ++d) {
          const double actual = double{output.at((std::int64_t{t} * num_heads + h) * latent + d)};
          const double wanted = expected[static_cast<std::size_t>(d)];
          if (!close(actual, wanted, tolerance)) {
            return fmt::format("output[{}, {}, {}] is {}, expected {}", t, h, d, actual, wanted);
          }
        }
      }
    }
    const std::int64_t padding = std::int64_t{num_tokens} * num_heads * latent;
    return std::isnan(output.at(padding)) ? "" : "a padding row was written";
  }

  std::vector<int> query_start_loc, seq_lens, block_table;
  int num_heads, latent, rope;
  int num_tokens = 0;
  std::int64_t num_slots = 0;
  Tensor query, cache, output, lse;
  attn::AttendParams params{};

 private:
  static bool close(double actual, double expected, double tolerance) {
    if (std::isinf(expected)) return actual == expected;
    return std::fabs(actual - expected) <= tolerance * (1 + std::fabs(expected));
  }

  void set_params(int columns) {
    params.query_element = element_of(query.dtype());
    params.output_element = attn::Element::kF32;
    params.query = query.bytes();
    params.query_token_stride = std::int64_t{num_heads} * width();
    params.query_head_stride = width();
    params.output = output.bytes();
    params.output_token_stride = std::int64_t{num_heads} * latent;
    params.output_head_stride = latent;
    params.lse = lse.data<float>();
    params.lse_stride = num_tokens + 1;
    params.query_start_loc = query_start_loc.data();
    params.seq_lens = seq_lens.data();
    params.num_requests = static_cast<int>(seq_lens.size());
    params.num_heads = num_heads;
    params.num_kv_heads = 1;
    params.head_size = width();
    params.v_head_size = latent;
    params.score.softmax_scale = 0.05f;
    params.score.window_left = -1;
    params.kv.block_stride = kBlockSize * width();
    params.kv.token_stride_key = params.kv.token_stride_value = width();
    params.kv.block_table = block_table.data();
    params.kv.block_table_stride = columns;
    params.kv.block_size = kBlockSize;
  }

  double solve(int t, int h, const std::vector<std::int64_t>& slots, double score_scale,
               double value_scale, std::vector<double>& result) const {
    std::vector<double> scores;
    double maximum = -std::numeric_limits<double>::infinity();
    for (const std::int64_t s : slots) {
      double dot = 0;
      for (int d = 0; d < width(); ++d) {
        dot += double{query.at((std::int64_t{t} * num_heads + h) * width() + d)} *
               double{cache.at(s * width() + d)};
      }
      scores.push_back(score_scale * dot);
      maximum = std::max(maximum, scores.back());
    }
    result.assign(static_cast<std::size_t>(latent), 0.0);
    if (slots.empty()) return maximum;
    double total = 0;
    for (std::size_t i = 0; i < slots.size(); ++i) total += std::exp(scores[i] - maximum);
    for (std::size_t i = 0; i < slots.size(); ++i) {
      const double weight = value_scale * std::exp(scores[i] - maximum) / total;
      for (int d = 0; d < latent; ++d) {
        result[static_cast<std::size_t>(d)] += weight * double{cache.at(slots[i] * width() + d)};
      }
    }
    return maximum + std::log(total);
  }
};

}  // namespace attnbench::cpu
