#include <doctest/doctest.h>
#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <cmath>
#include <limits>
#include <numeric>
#include <random>

#include "ops/cpu/attention/random_attention_testing.h"

namespace attnbench::cpu {
namespace {

constexpr double kInfinity = std::numeric_limits<double>::infinity();

float normal(std::mt19937_64& random) {
  // Twelve uniforms, because std::normal_distribution differs between libraries.
  float sum = -6.0f;
  for (int i = 0; i < 12; ++i) sum += static_cast<float>(random() >> 40) * 0x1p-24f;
  return sum;
}

}  // namespace

std::string AttentionCase::describe() const {
  return fmt::format(
      "H {}/{} D {}/{} dtypes {} {} {} paged {} scaled {} pth {} cap {} window {},{} alibi {} "
      "sinks {} ranges {} seed {}",
      num_heads, num_kv_heads, head_size, v_head_size, dtype_name(query_dtype),
      dtype_name(kv_dtype), dtype_name(output_dtype), paged, scaled, per_token_head, soft_cap,
      window_left, window_right, static_cast<int>(alibi), sinks, mm_ranges.size(), seed);
}

AttentionSetup::AttentionSetup(const AttentionCase& the_case) : case_(the_case) {
  build_batch();
  build_tensors();
  build_params();
  solve();
}

void AttentionSetup::build_batch() {
  query_start_loc = {0};
  kv_start_loc = {0};
  seq_lens = case_.seq_lens;
  for (std::size_t b = 0; b < seq_lens.size(); ++b) {
    query_start_loc.push_back(query_start_loc.back() + case_.query_lens[b]);
    kv_start_loc.push_back(kv_start_loc.back() + seq_lens[b]);
    columns_ = std::max(columns_, (seq_lens[b] + block_size_ - 1) / block_size_ + 1);
  }
  num_tokens = query_start_loc.back();
  num_blocks_ = columns_ * static_cast<int>(seq_lens.size()) + 1;
  std::mt19937_64 random(case_.seed);
  std::vector<int> pages(static_cast<std::size_t>(num_blocks_));
  std::iota(pages.begin(), pages.end(), 0);
  for (std::size_t i = pages.size() - 1; i > 0; --i) std::swap(pages[i], pages[random() % (i + 1)]);
  block_table.assign(seq_lens.size() * static_cast<std::size_t>(columns_), -7);
  std::size_t next = 0;
  for (std::size_t b = 0; b < seq_lens.size(); ++b) {
    for (int c = 0; c * block_size_ < seq_lens[b]; ++c) {
      block_table[b * static_cast<std::size_t>(columns_) + static_cast<std::size_t>(c)] =
          pages[next++];
    }
  }
}

std::int64_t AttentionSetup::cell(int request, int position, int head, bool value) const {
  if (!case_.paged) {
    const std::int64_t rows = kv_start_loc.back();
    const std::int64_t row = kv_start_loc[static_cast<std::size_t>(request)] + position;
    return ((value ? rows : 0) + row) * case_.num_kv_heads * width_ + std::int64_t{head} * width_;
  }
  const std::int64_t block =
      block_table[static_cast<std::size_t>(request * columns_ + position / block_size_)];
  return (((block * 2 + (value ? 1 : 0)) * block_size_ + position % block_size_) *
              case_.num_kv_heads +
          head) *
         width_;
}

std::int64_t AttentionSetup::scale_index(int request, int position, int head, bool value) const {
  if (!case_.paged) return 0;
  return cell(request, position, head, value) / width_;
}

void AttentionSetup::build_tensors() {
  const AttentionCase& c = case_;
  std::mt19937_64 random(c.seed + 100);
  width_ = std::max(c.head_size, c.v_head_size);
  query = Tensor(c.query_dtype, {num_tokens + 1, c.num_heads, c.head_size});
  for (std::int64_t i = 0; i < query.num_elements(); ++i) {
    query.set(i, c.magnitude * normal(random));
  }
  output = Tensor(c.output_dtype, {num_tokens + 2, c.num_heads, c.v_head_size});
  lse = Tensor(Dtype::kF32, {c.num_heads, num_tokens + 1});
  std::fill_n(output.bytes(), output.size_bytes(), std::byte{0xFF});
  std::fill_n(lse.bytes(), lse.size_bytes(), std::byte{0xFF});
  const std::int64_t cells = c.paged ? std::int64_t{num_blocks_} * 2 * block_size_ * c.num_kv_heads
                                     : 2 * kv_start_loc.back() * c.num_kv_heads;
  cache = Tensor(c.kv_dtype, {std::max<std::int64_t>(cells, 1), width_});
  std::fill_n(cache.bytes(), cache.size_bytes(),
              c.kv_dtype == Dtype::kI8 ? std::byte{0x7F} : std::byte{0xFF});
  token_scales.assign(static_cast<std::size_t>(cells) + 1, std::numeric_limits<float>::quiet_NaN());
  for (int b = 0; b < static_cast<int>(seq_lens.size()); ++b) {
    const int seq_len = seq_lens[static_cast<std::size_t>(b)];
    for (int j = 0; j < seq_len; ++j) {
      for (int head = 0; head < c.num_kv_heads; ++head) {
        for (const bool value : {false, true}) {
          const float unit = c.kv_dtype == Dtype::kI8 ? 30.0f : 1.0f;
          for (int d = 0; d < (value ? c.v_head_size : c.head_size); ++d) {
            cache.set(cell(b, j, head, value) + d, unit * normal(random));
          }
          token_scales[static_cast<std::size_t>(scale_index(b, j, head, value))] =
              (0.5f + std::fabs(normal(random))) / unit;
          if (value && c.nonfinite_future && j + 1 == seq_len) {
            cache.set(cell(b, j, head, value), std::numeric_limits<float>::quiet_NaN());
            cache.set(cell(b, j, head, value) + 1, std::numeric_limits<float>::infinity());
          }
        }
      }
    }
  }
  for (int head = 0; head < c.num_heads; ++head) {
    slopes.push_back(0.05f * static_cast<float>(head + 1));
    sinks.push_back(normal(random));
  }
  for (int head = 0; head < c.num_kv_heads; ++head) {
    k_scale.push_back(0.3f + 0.2f * static_cast<float>(head));
    v_scale.push_back(1.7f - 0.3f * static_cast<float>(head));
  }
}

void AttentionSetup::build_params() {
  const AttentionCase& c = case_;
  params.query_element = static_cast<attn::Element>(c.query_dtype);
  params.output_element = static_cast<attn::Element>(c.output_dtype);
  params.query = query.bytes();
  params.query_token_stride = std::int64_t{c.num_heads} * c.head_size;
  params.query_head_stride = c.head_size;
  params.output = output.bytes();
  params.output_token_stride = std::int64_t{c.num_heads} * c.v_head_size;
  params.output_head_stride = c.v_head_size;
  params.lse = lse.data<float>();
  params.lse_stride = num_tokens + 1;
  params.query_start_loc = query_start_loc.data();
  params.seq_lens = seq_lens.data();
  params.num_requests = static_cast<int>(seq_lens.size());
  params.num_heads = c.num_heads;
  params.num_kv_heads = c.num_kv_heads;
  params.head_size = c.head_size;
  params.v_head_size = c.v_head_size;
  params.score = {c.scale,
                  c.soft_cap,
                  c.window_left,
                  c.window_right,
                  c.alibi,
                  slopes.data(),
                  c.sinks ? sinks.data() : nullptr,
                  nullptr,
                  0,
                  {}};
  if (!c.mm_ranges.empty()) {
    std::size_t most = 1;
    for (const auto& list : c.mm_ranges) most = std::max(most, list.size());
    mm_ranges.assign(c.mm_ranges.size() * most * 2, 0);
    for (std::size_t b = 0; b < c.mm_ranges.size(); ++b) {
      for (std::size_t k = 0; k < c.mm_ranges[b].size(); ++k) {
        mm_ranges[(b * most + k) * 2] = c.mm_ranges[b][k][0];
        mm_ranges[(b * most + k) * 2 + 1] = c.mm_ranges[b][k][1];
      }
    }
    params.score.mm_ranges = mm_ranges.data();
    params.score.num_mm_ranges = static_cast<int>(most);
  }
  attn::KvParams& kv = params.kv;
  const std::int64_t token = std::int64_t{c.num_kv_heads} * width_;
  const auto size = static_cast<std::int64_t>(dtype_size(c.kv_dtype));
  kv.element = static_cast<attn::Element>(c.kv_dtype);
  kv.key = cache.bytes();
  kv.value = cache.bytes() + size * token * (c.paged ? block_size_ : kv_start_loc.back());
  kv.block_stride = 2 * block_size_ * token;
  kv.token_stride_key = kv.token_stride_value = token;
  kv.head_stride_key = kv.head_stride_value = width_;
  kv.block_size = block_size_;
  if (c.paged) {
    kv.block_table = block_table.data();
    kv.block_table_stride = columns_;
  } else {
    kv.kv_start_loc = kv_start_loc.data();
  }
  if (c.scaled) {
    kv.k_scale = k_scale.data();
    kv.v_scale = v_scale.data();
  }
  if (c.per_token_head) {
    kv.key_scales = token_scales.data();
    kv.value_scales = token_scales.data() + block_size_ * c.num_kv_heads;
    kv.scale_block_stride = 2 * block_size_ * c.num_kv_heads;
    kv.scale_slot_stride = c.num_kv_heads;
    kv.scale_head_stride = 1;
  }
  kv.round_dequantized = c.round_dequantized ? 1 : 0;
}

double AttentionSetup::stored(std::int64_t element, std::int64_t index, float head_scale) const {
  float value = cache.at(element);
  if (case_.scaled) value *= head_scale;
  if (case_.per_token_head) value *= token_scales[static_cast<std::size_t>(index)];
  return case_.round_dequantized ? round_to(case_.query_dtype, value) : value;
}
std::vector<double> AttentionSetup::elements(int request, bool value) const {
  const std::vector<float>& scales = value ? v_scale : k_scale;
  const int size = value ? case_.v_head_size : case_.head_size;
  const int seq_len = seq_lens[static_cast<std::size_t>(request)];
  std::vector<double> found(static_cast<std::size_t>(seq_len * case_.num_kv_heads * width_));
  for (int j = 0; j < seq_len; ++j) {
    for (int head = 0; head < case_.num_kv_heads; ++head) {
      const std::int64_t first = cell(request, j, head, value);
      const std::int64_t scale = scale_index(request, j, head, value);
      const auto at = static_cast<std::size_t>((j * case_.num_kv_heads + head) * width_);
      for (int d = 0; d < size; ++d) {
        found[at + static_cast<std::size_t>(d)] =
            stored(first + d, scale, scales[static_cast<std::size_t>(head)]);
      }
    }
  }
  return found;
}

void AttentionSetup::solve_row(int request, int i, int head, const std::vector<double>& keys,
                               const std::vector<double>& values) {
  const AttentionCase& c = case_;
  const auto b = static_cast<std::size_t>(request);
  const auto h = static_cast<std::size_t>(head);
  const int seq_len = seq_lens[b];
  const int context = seq_len - c.query_lens[b];
  const int p = context + i;
  const int token = query_start_loc[b] + i;
  const int kv_head = head / (c.num_heads / c.num_kv_heads);
  std::vector<double> query_row(static_cast<std::size_t>(c.head_size));
  for (int d = 0; d < c.head_size; ++d) {
    query_row[static_cast<std::size_t>(d)] =
        double{query.at((std::int64_t{token} * c.num_heads + head) * c.head_size + d)};
  }
  const auto row_of = [&](const std::vector<double>& elements, int j) {
    return elements.data() + static_cast<std::ptrdiff_t>(j * c.num_kv_heads + kv_head) * width_;
  };
  std::vector<double> scores(static_cast<std::size_t>(seq_len), -kInfinity);
  double maximum = c.sinks ? double{sinks[h]} : -kInfinity;
  for (int j = 0; j < seq_len; ++j) {
    bool allowed = (c.window_left < 0 || j >= p - c.window_left) &&
                   (c.window_right < 0 || j <= p + c.window_right);
    if (!c.mm_ranges.empty()) {
      for (const auto& range : c.mm_ranges[b]) {
        allowed = allowed || (range[0] < range[1] && range[0] <= p && p <= range[1] &&
                              range[0] <= j && j <= range[1]);
      }
    }
    if (!allowed) continue;
    const double* key = row_of(keys, j);
    double s = 0;
    for (int d = 0; d < c.head_size; ++d) s += query_row[static_cast<std::size_t>(d)] * key[d];
    s *= double{c.scale};
    if (c.soft_cap > 0) s = double{c.soft_cap} * std::tanh(s / double{c.soft_cap});
    const double slope = double{slopes[h]};
    if (c.alibi == attn::Alibi::kKeyIndex) s += slope * j;
    if (c.alibi == attn::Alibi::kContextRelative) s += slope * (j - context);
    if (c.alibi == attn::Alibi::kDistance) s -= slope * std::abs(p - j);
    if (c.alibi == attn::Alibi::kSqrt && j <= p) s -= slope * std::sqrt(double(p - j));
    scores[static_cast<std::size_t>(j)] = s;
    maximum = std::max(maximum, s);
  }
  double total = c.sinks ? std::exp(double{sinks[h]} - maximum) : 0.0;
  const std::size_t at = static_cast<std::size_t>(token * c.num_heads + head) *
                         static_cast<std::size_t>(c.v_head_size);
  for (int j = 0; j < seq_len; ++j) {
    const double s = scores[static_cast<std::size_t>(j)];
    if (s == -kInfinity) continue;
    const double weight = std::exp(s - maximum);
    total += weight;
    const double* value = row_of(values, j);
    for (int d = 0; d < c.v_head_size; ++d) {
      expected_output[at + static_cast<std::size_t>(d)] += weight * value[d];
    }
  }
  for (int d = 0; d < c.v_head_size && total > 0; ++d) {
    expected_output[at + static_cast<std::size_t>(d)] /= total;
  }
  expected_lse[static_cast<std::size_t>(head * num_tokens + token)] =
      total > 0 ? maximum + std::log(total) : -kInfinity;
}

void AttentionSetup::solve() {
  expected_output.assign(static_cast<std::size_t>(num_tokens * case_.num_heads * case_.v_head_size),
                         0.0);
  expected_lse.assign(static_cast<std::size_t>(num_tokens * case_.num_heads), 0.0);
  for (int b = 0; b < static_cast<int>(seq_lens.size()); ++b) {
    const std::vector<double> keys = elements(b, false);
    const std::vector<double> values = elements(b, true);
    for (int i = 0; i < case_.query_lens[static_cast<std::size_t>(b)]; ++i) {
      for (int head = 0; head < case_.num_heads; ++head) solve_row(b, i, head, keys, values);
    }
  }
}

std::string AttentionSetup::difference(double tolerance) const {
  const auto differs = [&](double actual, double expected) {
    if (std::isnan(expected)) return !std::isnan(actual);
    if (std::isinf(expected)) return actual != expected;
    return !(std::fabs(actual - expected) <= tolerance * (1 + std::fabs(expected)));
  };
  for (std::size_t i = 0; i < expected_output.size(); ++i) {
    const double actual = double{output.at(static_cast<std::int64_t>(i))};
    if (differs(actual, expected_output[i])) {
      return fmt::format("output[{}] is {}, expected {}", i, actual, expected_output[i]);
    }
  }
  for (std::int64_t i = static_cast<std::int64_t>(expected_output.size());
       i < output.num_elements(); ++i) {
    if (!std::isnan(output.at(i))) return fmt::format("padding element {} was written", i);
  }
  for (int head = 0; head < case_.num_heads; ++head) {
    for (int token = 0; token < num_tokens; ++token) {
      const double actual = double{lse.at(std::int64_t{head} * (num_tokens + 1) + token)};
      const double expected = expected_lse[static_cast<std::size_t>(head * num_tokens + token)];
      if (differs(actual, expected)) {
        return fmt::format("lse[{}, {}] is {}, expected {}", head, token, actual, expected);
      }
    }
  }
  return "";
}

}  // namespace attnbench::cpu
