#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <cstring>
#include <limits>
#include <numeric>
#include <random>

#include "ops/cpu/attention/int8_attention_testing.h"

namespace attnbench::cpu {
namespace {

constexpr double kInf = std::numeric_limits<double>::infinity();
constexpr float kNan = std::numeric_limits<float>::quiet_NaN();

float uniform(std::mt19937_64& random) { return static_cast<float>(random() >> 40) * 0x1p-24f; }

float random_code(std::mt19937_64& random, bool extreme) {
  if (extreme) return random() % 2 == 0 ? -128.0f : 127.0f;
  return std::floor(uniform(random) * 256.0f) - 128.0f;
}

std::size_t index(std::int64_t i) { return static_cast<std::size_t>(i); }

}  // namespace

std::string Int8Case::describe() const {
  return fmt::format(
      "level {} H {}/{} D {} out {} transposed {} cap {} window {},{} alibi {} lens {} of {} "
      "extreme {} seed {}",
      level, num_heads, num_kv_heads, head_size, dtype_name(output_dtype), transposed_scales,
      soft_cap, window_left, window_right, static_cast<int>(alibi), query_lens.front(),
      seq_lens.front(), extreme, seed);
}

Int8Setup::Int8Setup(const Int8Case& the_case) : case_(the_case) {
  build_batch();
  build_queries();
  build_cache();
  build_params();
}

void Int8Setup::build_batch() {
  query_start_loc_ = {0};
  int rows = 0;
  for (std::size_t b = 0; b < case_.seq_lens.size(); ++b) {
    first_row_.push_back(rows);
    rows += case_.seq_lens[b];
    query_start_loc_.push_back(query_start_loc_.back() + case_.query_lens[b]);
    columns_ = std::max(columns_, case_.seq_lens[b] / block_size_ + 2);
  }
  first_row_.push_back(rows);
  num_tokens = query_start_loc_.back();
  num_blocks_ = columns_ * static_cast<int>(case_.seq_lens.size()) + 1;
  std::vector<int> pages(index(num_blocks_));
  std::iota(pages.rbegin(), pages.rend(), 0);
  block_table_.assign(case_.seq_lens.size() * index(columns_), -7);
  std::size_t next = 0;
  for (std::size_t b = 0; b < case_.seq_lens.size(); ++b) {
    for (int c = 0; c * block_size_ < case_.seq_lens[b]; ++c) {
      block_table_[b * index(columns_) + index(c)] = pages[next++];
    }
  }
}

void Int8Setup::build_queries() {
  std::mt19937_64 random(case_.seed);
  const int h = case_.num_heads;
  query_ = Tensor(Dtype::kI8, {num_tokens, h, case_.head_size});
  for (std::int64_t i = 0; i < query_.num_elements(); ++i) {
    query_.set(i, random_code(random, case_.extreme));
  }
  query_scale_.resize(index(num_tokens * h));
  for (float& scale : query_scale_) scale = (0.2f + uniform(random)) / 32.0f;
  for (int head = 0; head < h; ++head) slopes_.push_back(0.3f / static_cast<float>(head + 1));
  channel_scale_.resize(index(case_.num_kv_heads * case_.head_size));
  for (float& scale : channel_scale_) scale = (0.5f + uniform(random)) / 64.0f;
}

std::int64_t Int8Setup::slot(int request, int position) const {
  const int block = block_table_[index(request * columns_ + position / block_size_)];
  return std::int64_t{block} * block_size_ + position % block_size_;
}

/// Row of [NB, Hk, bs].
std::int64_t Int8Setup::cell(int request, int position, int head) const {
  const std::int64_t s = slot(request, position);
  return (s / block_size_ * case_.num_kv_heads + head) * block_size_ + s % block_size_;
}

void Int8Setup::put(int request, int position, int head, bool poison) {
  const int d = case_.head_size;
  const std::int64_t row =
      std::int64_t{first_row_[index(request)] + position} * case_.num_kv_heads + head;
  const std::int64_t at = cell(request, position, head);
  const std::size_t value_size = case_.level == 2 ? 2 : 1;
  std::byte* key = cache_.bytes() + at * d;
  std::byte* value = cache_.bytes() +
                     std::int64_t{num_blocks_} * case_.num_kv_heads * block_size_ * d +
                     at * d * static_cast<std::int64_t>(value_size);
  const auto width = static_cast<std::size_t>(d);
  key_scale_cache_[index(at)] = poison ? kNan : all_key_scales_[index(row)];
  if (poison) {
    std::memset(key, 0x7F, width);
    std::memset(value, 0xFF, width * value_size);
  } else {
    std::memcpy(key, all_keys_.bytes() + row * d, width);
    std::memcpy(value, all_values_.bytes() + row * d * static_cast<std::int64_t>(value_size),
                width * value_size);
  }
}

void Int8Setup::build_cache() {
  std::mt19937_64 random(case_.seed + 1);
  const int hk = case_.num_kv_heads;
  const std::vector<std::int64_t> shape{first_row_.back(), hk, case_.head_size};
  all_keys_ = Tensor(Dtype::kI8, shape);
  all_values_ = Tensor(case_.level == 2 ? Dtype::kBF16 : Dtype::kI8, shape);
  for (std::int64_t i = 0; i < all_keys_.num_elements(); ++i) {
    all_keys_.set(i, random_code(random, case_.extreme));
    all_values_.set(i, case_.level == 2 ? 4 * uniform(random) - 2 : random_code(random, false));
  }
  all_key_scales_.resize(index(first_row_.back() * hk));
  for (float& scale : all_key_scales_) scale = (0.2f + uniform(random)) / 32.0f;

  const std::int64_t rows = std::int64_t{num_blocks_} * hk * block_size_;
  cache_ = Tensor(Dtype::kI8, {case_.level == 2 ? 3 : 2, rows, case_.head_size});
  std::fill_n(cache_.bytes(), cache_.size_bytes(), std::byte{0xFF});
  key_scale_cache_.assign(index(rows), kNan);
  for (int b = 0; b < static_cast<int>(case_.seq_lens.size()); ++b) {
    for (int j = 0; j < case_.seq_lens[index(b)]; ++j) {
      for (int head = 0; head < hk; ++head) put(b, j, head, false);
    }
  }
}

void Int8Setup::forget_new_tokens() {
  for (int b = 0; b < static_cast<int>(case_.seq_lens.size()); ++b) {
    const int seq_len = case_.seq_lens[index(b)];
    for (int j = std::max(0, seq_len - case_.query_lens[index(b)]); j < seq_len; ++j) {
      for (int head = 0; head < case_.num_kv_heads; ++head) put(b, j, head, true);
    }
  }
}

void Int8Setup::build_params() {
  const Int8Case& c = case_;
  const std::int64_t d = c.head_size;
  output = Tensor(c.output_dtype, {num_tokens + 1, c.num_heads, d});
  lse = Tensor(Dtype::kF32, {c.num_heads, num_tokens});
  std::fill_n(output.bytes(), output.size_bytes(), std::byte{0xFF});
  params.query_element = attn::Element::kI8;
  params.output_element = static_cast<attn::Element>(c.output_dtype);
  params.query = query_.bytes();
  params.output = output.bytes();
  params.query_token_stride = params.output_token_stride = c.num_heads * d;
  params.query_head_stride = params.output_head_stride = d;
  params.lse = lse.data<float>();
  params.lse_stride = num_tokens;
  params.query_start_loc = query_start_loc_.data();
  params.seq_lens = case_.seq_lens.data();
  params.num_requests = static_cast<int>(c.seq_lens.size());
  params.num_heads = c.num_heads;
  params.num_kv_heads = c.num_kv_heads;
  params.head_size = params.v_head_size = c.head_size;
  params.score = {c.scale,        c.soft_cap, c.window_left,
                  c.window_right, c.alibi,    slopes_.data(),
                  nullptr,        nullptr,    0,
                  {}};
  attn::KvParams& kv = params.kv;
  kv.element = attn::Element::kI8;
  kv.key = cache_.bytes();
  kv.value = cache_.bytes() + std::int64_t{num_blocks_} * c.num_kv_heads * block_size_ * d;
  kv.block_stride = c.num_kv_heads * block_size_ * d;
  kv.head_stride_key = kv.head_stride_value = block_size_ * d;
  kv.token_stride_key = kv.token_stride_value = d;
  kv.block_table = block_table_.data();
  kv.block_table_stride = columns_;
  kv.block_size = block_size_;
  kv.key_scales = key_scale_cache_.data();
  kv.scale_block_stride = std::int64_t{c.num_kv_heads} * block_size_;
  kv.scale_head_stride = block_size_;
  kv.scale_slot_stride = 1;
  attn::Int8ScoreParams& int8 = params.int8;
  int8.query_scale = query_scale_.data();
  int8.query_scale_token_stride = c.transposed_scales ? 1 : c.num_heads;
  int8.query_scale_head_stride = c.transposed_scales ? num_tokens : 1;
  int8.value_element = c.level == 2 ? attn::Element::kBF16 : attn::Element::kI8;
  int8.value_channel_scale = c.level == 2 ? nullptr : channel_scale_.data();

  const std::vector<std::int64_t> shape{num_tokens, c.num_kv_heads, d};
  key_ = Tensor(Dtype::kI8, shape);
  value_ = Tensor(all_values_.dtype(), shape);
  key_scale_.assign(index(num_tokens * c.num_kv_heads), kNan);
  for (int b = 0; b < params.num_requests; ++b) {
    const int context = c.seq_lens[index(b)] - c.query_lens[index(b)];
    for (int i = 0; i < c.query_lens[index(b)]; ++i) {
      const bool stored = context + i >= 0;
      slot_mapping.push_back(stored ? slot(b, context + i) : -1);
      if (!stored) continue;
      const std::int64_t source = first_row_[index(b)] + context + i;
      const std::int64_t target = query_start_loc_[index(b)] + i;
      for (std::int64_t e = 0; e < c.num_kv_heads * d; ++e) {
        key_.set(target * c.num_kv_heads * d + e, all_keys_.at(source * c.num_kv_heads * d + e));
        value_.set(target * c.num_kv_heads * d + e,
                   all_values_.at(source * c.num_kv_heads * d + e));
      }
      for (int head = 0; head < c.num_kv_heads; ++head) {
        key_scale_[index(target * c.num_kv_heads + head)] =
            all_key_scales_[index(source * c.num_kv_heads + head)];
      }
    }
  }
  save.key = key_.data<signed char>();
  save.key_token_stride = save.value_token_stride = c.num_kv_heads * d;
  save.key_head_stride = save.value_head_stride = d;
  save.key_scale = key_scale_.data();
  save.key_scale_token_stride = c.num_kv_heads;
  save.key_scale_head_stride = 1;
  save.value_element = int8.value_element;
  save.value = value_.bytes();
  save.key_cache = cache_.data<signed char>();
  save.value_cache = cache_.bytes() + std::int64_t{num_blocks_} * c.num_kv_heads * block_size_ * d;
  save.block_stride = kv.block_stride;
  save.slot_stride = kv.token_stride_key;
  save.head_stride = kv.head_stride_key;
  save.key_scale_cache = key_scale_cache_.data();
  save.scale_block_stride = kv.scale_block_stride;
  save.scale_slot_stride = kv.scale_slot_stride;
  save.scale_head_stride = kv.scale_head_stride;
  save.num_tokens = num_tokens;
  save.block_size = block_size_;
  save.num_kv_heads = c.num_kv_heads;
  save.head_size = c.head_size;
  save.block_table = kv.block_table;
  save.block_table_stride = kv.block_table_stride;
  save.query_start_loc = params.query_start_loc;
  save.seq_lens = params.seq_lens;
  save.num_requests = params.num_requests;
}

float Int8Setup::raw_score(int request, int i, int head, int key) const {
  const Int8Case& c = case_;
  const int kv_head = head / (c.num_heads / c.num_kv_heads);
  const int token = query_start_loc_[index(request)] + i;
  const std::int64_t q_row = std::int64_t{token} * c.num_heads + head;
  const std::int64_t k_row =
      std::int64_t{first_row_[index(request)] + key} * c.num_kv_heads + kv_head;
  std::int32_t sum = 0;
  for (int d = 0; d < c.head_size; ++d) {
    sum += std::int32_t{query_.data<std::int8_t>()[q_row * c.head_size + d]} *
           all_keys_.data<std::int8_t>()[k_row * c.head_size + d];
  }
  const float q_s = query_scale_[index(c.transposed_scales ? head * num_tokens + token : q_row)];
  return c.scale * (q_s * all_key_scales_[index(k_row)]) * static_cast<float>(sum);
}

double Int8Setup::value_at(int request, int position, int head, int d) const {
  const Int8Case& c = case_;
  const std::int64_t row =
      std::int64_t{first_row_[index(request)] + position} * c.num_kv_heads + head;
  const double code = double{all_values_.at(row * c.head_size + d)};
  return c.level == 2 ? code : code * double{channel_scale_[index(head * c.head_size + d)]};
}

std::string Int8Setup::row_difference(int request, int i, int head, double tolerance) const {
  const Int8Case& c = case_;
  const int seq_len = c.seq_lens[index(request)];
  const int p = seq_len - c.query_lens[index(request)] + i;
  const int token = query_start_loc_[index(request)] + i;
  std::vector<double> scores(index(seq_len), -kInf);
  double maximum = -kInf;
  for (int j = 0; j < seq_len; ++j) {
    if (c.window_left >= 0 && j < p - c.window_left) continue;
    if (c.window_right >= 0 && j > p + c.window_right) continue;
    double s = double{raw_score(request, i, head, j)};
    if (c.soft_cap > 0) s = double{c.soft_cap} * std::tanh(s / double{c.soft_cap});
    const double slope = double{slopes_[index(head)]};
    if (c.alibi == attn::Alibi::kKeyIndex) s += slope * j;
    if (c.alibi == attn::Alibi::kDistance) s -= slope * std::abs(p - j);
    if (c.alibi == attn::Alibi::kSqrt && j <= p) s -= slope * std::sqrt(double(p - j));
    scores[index(j)] = s;
    maximum = std::max(maximum, s);
  }
  double total = 0;
  std::vector<double> expected(index(c.head_size), 0.0);
  for (int j = 0; j < seq_len; ++j) {
    if (scores[index(j)] == -kInf) continue;
    const double weight = std::exp(scores[index(j)] - maximum);
    total += weight;
    for (int d = 0; d < c.head_size; ++d) {
      expected[index(d)] += weight * value_at(request, j, head / (c.num_heads / c.num_kv_heads), d);
    }
  }
  const auto differs = [&](double actual, double wanted) {
    if (std::isinf(wanted)) return actual != wanted;
    return !(std::fabs(actual - wanted) <= tolerance * (1 + std::fabs(wanted)));
  };
  for (int d = 0; d < c.head_size; ++d) {
    const double wanted = total > 0 ? expected[index(d)] / total : 0.0;
    const double actual =
        double{output.at((std::int64_t{token} * c.num_heads + head) * c.head_size + d)};
    if (differs(actual, wanted)) {
      return fmt::format("output[{}, {}, {}] is {}, expected {}", token, head, d, actual, wanted);
    }
  }
  const double wanted = total > 0 ? maximum + std::log(total) : -kInf;
  const double actual = double{lse.at(std::int64_t{head} * num_tokens + token)};
  return differs(actual, wanted)
             ? fmt::format("lse[{}, {}] is {}, expected {}", head, token, actual, wanted)
             : "";
}

std::string Int8Setup::difference(double tolerance) const {
  for (int b = 0; b < params.num_requests; ++b) {
    for (int i = 0; i < case_.query_lens[index(b)]; ++i) {
      for (int head = 0; head < case_.num_heads; ++head) {
        const std::string found = row_difference(b, i, head, tolerance);
        if (!found.empty()) return found;
      }
    }
  }
  for (std::int64_t e = 0; e < std::int64_t{case_.num_heads} * case_.head_size; ++e) {
    const std::int64_t at = std::int64_t{num_tokens} * case_.num_heads * case_.head_size + e;
    if (!std::isnan(output.at(at))) return fmt::format("padding element {} was written", at);
  }
  return "";
}

}  // namespace attnbench::cpu
