#include <doctest/doctest.h>

#include <algorithm>
#include <cmath>
#include <cstring>
#include <random>
#include <vector>

#include "core/tensor.h"
#include "ops/ops.h"

namespace attnbench::cpu {
namespace {

void fill(Tensor& tensor, std::uint64_t seed) {
  std::mt19937_64 random(seed);
  for (std::int64_t i = 0; i < tensor.num_elements(); ++i) {
    tensor.set(i, static_cast<float>(random() >> 40) * 0x1p-22f - 2.0f);
  }
}

/// Sequences of an image batch: token starts [n + 1].
struct Sequences {
  std::vector<int> query_start_loc{0};
  std::vector<attn::i64> kv_start_loc{0};
  std::vector<int> lens;
  explicit Sequences(std::vector<int> the_lens) : lens(std::move(the_lens)) {
    for (const int len : lens) {
      query_start_loc.push_back(query_start_loc.back() + len);
      kv_start_loc.push_back(query_start_loc.back());
    }
  }
};

attn::AttendParams encoder_params(const Sequences& sequences, int heads, int kv_heads, int depth,
                                  Tensor& output) {
  attn::AttendParams params{};
  params.output_element = static_cast<attn::Element>(output.dtype());
  params.output = output.bytes();
  params.output_token_stride = std::int64_t{heads} * depth;
  params.output_head_stride = depth;
  params.query_start_loc = sequences.query_start_loc.data();
  params.seq_lens = sequences.lens.data();
  params.num_requests = static_cast<int>(sequences.lens.size());
  params.num_heads = heads;
  params.num_kv_heads = kv_heads;
  params.head_size = params.v_head_size = depth;
  params.score.window_left = params.score.window_right = -1;
  params.kv.kv_start_loc = sequences.kv_start_loc.data();
  return params;
}

}  // namespace

TEST_CASE("values read from an interleaved QKV buffer give the same bytes as contiguous ones") {
  constexpr int kHeads = 2;
  constexpr int kDepth = 40;
  constexpr std::int64_t kUnit = kHeads * kDepth;
  const Sequences sequences({5, 0, 130, 1});
  const std::int64_t tokens = sequences.query_start_loc.back();
  Tensor qkv(Dtype::kBF16, {tokens, 3, kHeads, kDepth});
  fill(qkv, 3);
  Tensor parts[3];
  for (std::int64_t part = 0; part < 3; ++part) {
    parts[part] = Tensor(Dtype::kBF16, {tokens, kHeads, kDepth});
    for (std::int64_t t = 0; t < tokens; ++t) {
      std::memcpy(parts[part].bytes() + t * kUnit * 2, qkv.bytes() + (t * 3 + part) * kUnit * 2,
                  static_cast<std::size_t>(kUnit) * 2);
    }
  }
  Tensor outputs[2];
  for (const bool interleaved : {false, true}) {
    Tensor& output = outputs[interleaved ? 1 : 0];
    output = Tensor(Dtype::kBF16, {tokens, kHeads, kDepth});
    attn::AttendParams params = encoder_params(sequences, kHeads, kHeads, kDepth, output);
    params.query_element = params.kv.element = attn::Element::kBF16;
    params.score.softmax_scale = 0.15f;
    // Q and K contiguous, V a view: its token stride is 3u.
    params.query = parts[0].bytes();
    params.query_token_stride = params.kv.token_stride_key = kUnit;
    params.query_head_stride = params.kv.head_stride_key = params.kv.head_stride_value = kDepth;
    params.kv.key = parts[1].bytes();
    params.kv.value = interleaved ? qkv.bytes() + 2 * kUnit * 2 : parts[2].bytes();
    params.kv.token_stride_value = interleaved ? 3 * kUnit : kUnit;
    make_cpu_ops(2)->attend(params);
  }
  CHECK(std::memcmp(outputs[0].bytes(), outputs[1].bytes(), outputs[0].size_bytes()) == 0);
  CHECK(outputs[0].at(0) != 0.0f);
}

TEST_CASE(
    "P in e4m3 is shifted by 2^8 before it is rounded, and its sum is of what it was before") {
  // One query of 1 and two keys: scores 0 and -x, so P is 1 and e^-x. Values 0 and 1.
  for (const float x : {1.0f, 4.0f, 8.0f, 11.0f}) {
    const float query = 1.0f;
    const float keys[2] = {0.0f, -x};
    const float values[2] = {0.0f, 1.0f};
    const int query_start_loc[2] = {0, 1};
    const attn::i64 key_start_loc[2] = {0, 2};
    const int seq_len = 2;
    float output = 0;
    attn::AttendParams params{};
    params.query = &query;
    params.output = &output;
    params.query_start_loc = query_start_loc;
    params.seq_lens = &seq_len;
    params.num_requests = params.num_heads = params.num_kv_heads = 1;
    params.head_size = params.v_head_size = 1;
    params.score.softmax_scale = 1.0f;
    params.score.window_left = params.score.window_right = -1;
    params.kv.key = keys;
    params.kv.value = values;
    params.kv.kv_start_loc = key_start_loc;
    params.kv.token_stride_key = params.kv.token_stride_value = 1;
    params.e4m3_probability = 1;
    make_cpu_ops(1)->attend(params);
    const double p = std::exp(-double{x});
    Tensor code(Dtype::kE4M3, {1});
    code.set(0, static_cast<float>(p * 256));
    CHECK(output == doctest::Approx(double{code.at(0)} / 256 / (1 + p)).epsilon(1e-6));
    CHECK(output > 0.0f);  // e^-8 and e^-11 are 0 in e4m3 without the shift
  }
}

TEST_CASE("fp8 encoder attention on padded heads equals the definition and pads with zeros") {
  constexpr int kHeads = 4;
  constexpr int kKvHeads = 2;
  const float scales[3] = {0.011f, 0.013f, 0.017f};
  const Sequences sequences({33, 0, 7});
  const std::int64_t tokens = sequences.query_start_loc.back();
  for (const int depth : {32, 40, 72, 80, 100, 250}) {
    const int padded = (depth + 15) / 16 * 16;
    const auto ops = make_cpu_ops(2);
    Tensor codes[3];
    for (int part = 0; part < 3; ++part) {
      const int heads = part == 0 ? kHeads : kKvHeads;
      Tensor source(Dtype::kBF16, {tokens, heads, depth});
      fill(source, static_cast<std::uint64_t>(part + depth));
      codes[part] = Tensor(Dtype::kE4M3, {tokens, heads, padded});
      std::fill_n(codes[part].bytes(), codes[part].size_bytes(), std::byte{0xFF});
      ops->quantise_pad_fp8({attn::Element::kBF16, source.bytes(), std::int64_t{heads} * depth,
                             depth, codes[part].data<unsigned char>(), &scales[part], nullptr,
                             tokens, heads, depth, padded});
    }
    Tensor output(Dtype::kF32, {tokens, kHeads, padded});
    attn::AttendParams params = encoder_params(sequences, kHeads, kKvHeads, padded, output);
    const std::vector<float> v_scale(kKvHeads, scales[2]);
    const float softmax_scale = 1.0f / std::sqrt(static_cast<float>(depth));
    params.query_element = params.kv.element = attn::Element::kE4M3;
    params.score.softmax_scale = softmax_scale * scales[0] * scales[1];
    params.query = codes[0].bytes();
    params.query_token_stride = std::int64_t{kHeads} * padded;
    params.query_head_stride = params.kv.head_stride_key = params.kv.head_stride_value = padded;
    params.kv.key = codes[1].bytes();
    params.kv.value = codes[2].bytes();
    params.kv.token_stride_key = params.kv.token_stride_value = std::int64_t{kKvHeads} * padded;
    params.kv.v_scale = v_scale.data();
    ops->attend(params);

    double worst = 0;
    for (std::size_t s = 0; s < sequences.lens.size(); ++s) {
      const std::int64_t first = sequences.query_start_loc[s];
      const std::int64_t past = sequences.query_start_loc[s + 1];
      for (std::int64_t t = first; t < past; ++t) {
        for (std::int64_t h = 0; h < kHeads; ++h) {
          const auto element = [&](int part, std::int64_t token, std::int64_t d) {
            const std::int64_t heads = part == 0 ? kHeads : kKvHeads;
            const std::int64_t head = part == 0 ? h : h / (kHeads / kKvHeads);
            return double{codes[part].at((token * heads + head) * padded + d)} *
                   double{scales[part]};
          };
          std::vector<double> weights;
          double total = 0;
          for (std::int64_t j = first; j < past; ++j) {
            double dot = 0;
            for (int d = 0; d < depth; ++d) dot += element(0, t, d) * element(1, j, d);
            weights.push_back(std::exp(dot / std::sqrt(depth)));
            total += weights.back();
          }
          for (int d = 0; d < padded; ++d) {
            double expected = 0;
            for (std::int64_t j = first; j < past && d < depth; ++j) {
              expected += weights[static_cast<std::size_t>(j - first)] / total * element(2, j, d);
            }
            const double actual = double{output.at((t * kHeads + h) * padded + d)};
            worst = std::max(worst, std::fabs(actual - expected));
            if (d >= depth) REQUIRE(actual == 0.0);
          }
        }
      }
    }
    INFO("head size ", depth);
    CHECK(worst < 2e-5);
  }
}

}  // namespace attnbench::cpu
