#include <doctest/doctest.h>

#include <algorithm>
#include <array>
#include <cmath>
#include <limits>
#include <random>

#include "core/tensor.h"
#include "ops/cpu/attention/random_attention_testing.h"
#include "ops/ops.h"

namespace attnbench::cpu {
namespace {

double tolerance_of(Dtype output) {
  if (output == Dtype::kBF16) return 8e-3;
  if (output == Dtype::kF16) return 1e-3;
  return 2e-5;
}

void expect_attend(const AttentionCase& c) {
  AttentionSetup setup(c);
  make_cpu_ops(2)->attend(setup.params);
  INFO(c.describe());
  CHECK(setup.difference(tolerance_of(c.output_dtype)) == "");
}

void expect_splits(const AttentionCase& c, int num_splits) {
  AttentionSetup setup(c);
  const auto ops = make_cpu_ops(2);
  const auto rows = static_cast<std::size_t>(num_splits * setup.num_tokens * c.num_heads);
  std::vector<float> output(rows * static_cast<std::size_t>(c.v_head_size), NAN);
  std::vector<float> lse(rows, NAN);
  const attn::SplitParams split{num_splits, setup.num_tokens, output.data(), lse.data()};
  ops->attend_splits(setup.params, split);
  ops->combine_splits(setup.params, split);
  INFO(c.describe(), " splits ", num_splits);
  CHECK(setup.difference(tolerance_of(c.output_dtype)) == "");
}

void expect_segments(const AttentionCase& c, int tile) {
  AttentionSetup setup(c);
  const auto ops = make_cpu_ops(2);
  const auto rows = static_cast<std::size_t>(16 * setup.num_tokens * c.num_heads);
  std::vector<float> output(rows * static_cast<std::size_t>(c.v_head_size), NAN);
  std::vector<float> maxima(rows, NAN), sums(rows, NAN);
  const attn::SegmentParams segments{16, tile, output.data(), maxima.data(), sums.data()};
  ops->attend_segments(setup.params, segments);
  ops->reduce_segments(setup.params, segments);
  INFO(c.describe(), " tile ", tile);
  CHECK(setup.difference(tolerance_of(c.output_dtype)) == "");
}

/// A random mix of features; decode_only keeps every query at one token.
AttentionCase random_case(std::uint64_t seed, bool decode_only) {
  std::mt19937_64 random(seed);
  const auto pick = [&](std::initializer_list<int> values) {
    return values.begin()[random() % values.size()];
  };
  AttentionCase c;
  c.seed = seed;
  c.query_lens.clear();
  c.seq_lens.clear();
  for (int b = pick({1, 2, 3}); b > 0; --b) {
    const int query_len = decode_only ? 1 : pick({0, 1, 2, 7, 33, 150});
    c.query_lens.push_back(query_len);
    c.seq_lens.push_back(query_len + pick({0, 0, 5, 63, 64, 200, 300}));
  }
  c.num_kv_heads = pick({1, 2});
  c.num_heads = c.num_kv_heads * pick({1, 2, 4, 7, 8, 16});
  c.head_size = pick({32, 40, 64, 80});
  c.v_head_size = pick({0, 1}) == 0 ? c.head_size : pick({32, 24});
  c.query_dtype = c.output_dtype = static_cast<Dtype>(pick({0, 1, 2}));
  c.kv_dtype = c.query_dtype;
  c.paged = pick({0, 1, 1}) == 1;
  switch (c.paged ? pick({0, 0, 1, 2, 3, 4}) : 0) {
    case 1:
      c.kv_dtype = Dtype::kE4M3;
      c.scaled = true;
      break;
    case 2:
      c.kv_dtype = Dtype::kE5M2;
      c.scaled = c.round_dequantized = true;
      break;
    case 3:
      c.kv_dtype = Dtype::kI8;
      c.per_token_head = true;
      break;
    case 4:
      c.kv_dtype = Dtype::kE4M3;
      c.per_token_head = true;
      break;
    default:
      break;
  }
  c.soft_cap = static_cast<float>(pick({0, 0, 3, 50}));
  c.window_right = pick({0, 0, -1, 9});
  c.window_left = pick({-1, -1, 0, 17, 200});
  c.alibi = static_cast<attn::Alibi>(pick({0, 0, 1, 2, 3, 4}));
  c.sinks = pick({0, 1}) == 1;
  if (pick({0, 0, 1}) == 1) {
    for (int seq_len : c.seq_lens) {
      c.mm_ranges.push_back({{1, 20}, {3, 3}, {seq_len / 2, seq_len + 4}});
    }
  }
  return c;
}

}  // namespace

TEST_CASE("attend agrees with a naive double loop over random mixes of every feature") {
  for (std::uint64_t seed = 1; seed <= 150; ++seed) expect_attend(random_case(seed, false));
}

TEST_CASE("columns of keys that all heads share are read where they lie") {
  constexpr int kRope = 16;
  for (const Dtype dtype : {Dtype::kF32, Dtype::kBF16, Dtype::kE4M3}) {
    AttentionCase c{.query_lens = {5, 0, 70}, .seq_lens = {80, 3, 130}, .num_heads = 4};
    c.num_kv_heads = 2;
    c.head_size = 48;
    c.kv_dtype = dtype;
    c.paged = false;
    AttentionSetup whole(c);
    AttentionSetup apart(c);
    attn::KvParams& kv = apart.params.kv;
    const attn::i64 first = c.head_size - kRope;
    for (attn::i64 key = 0; key < apart.kv_start_loc.back(); ++key) {
      for (attn::i64 d = first; d < c.head_size; ++d) {
        const attn::i64 at = key * kv.token_stride_key + d;
        whole.cache.set(at + kv.head_stride_key, whole.cache.at(at));
        apart.cache.set(at + kv.head_stride_key, NAN);
      }
    }
    kv.rope = apart.cache.bytes() + first * static_cast<attn::i64>(dtype_size(dtype));
    kv.rope_token_stride = kv.token_stride_key;
    kv.rope_size = kRope;
    make_cpu_ops(2)->attend(whole.params);
    make_cpu_ops(2)->attend(apart.params);
    CAPTURE(dtype_name(dtype));
    const auto same = [](const Tensor& a, const Tensor& b) {
      return std::equal(a.bytes(), a.bytes() + a.size_bytes(), b.bytes());
    };
    CHECK(same(apart.output, whole.output));
    CHECK(same(apart.lse, whole.lse));
    CHECK_FALSE(std::isnan(apart.output.at(0)));
  }
}

TEST_CASE("splitting the keys and combining the parts changes nothing but low bits") {
  for (std::uint64_t seed = 1; seed <= 60; ++seed) {
    expect_splits(random_case(seed, seed % 3 != 0), 1 + static_cast<int>(seed % 7));
  }
}

TEST_CASE("a request without keys has the LSE of its sink in segments too") {
  AttentionCase c = random_case(3, true);
  c.query_lens = {1, 1};
  c.seq_lens = {0, 40};
  c.mm_ranges.clear();
  for (const bool sinks : {true, false}) {
    c.sinks = sinks;
    expect_segments(c, 16);
  }
}

TEST_CASE("segments and their reduction agree with the direct form") {
  for (std::uint64_t seed = 1; seed <= 60; ++seed) {
    expect_segments(random_case(seed, true), seed % 2 == 0 ? 16 : 32);
  }
}

TEST_CASE("queries that outnumber the keys see what bottom-right alignment leaves them") {
  AttentionCase c;
  c.query_lens = {150, 9};
  c.seq_lens = {40, 0};
  expect_attend(c);
  c.sinks = true;
  expect_attend(c);
  c.window_right = -1;
  expect_attend(c);
}

TEST_CASE("NaN and infinity in a value reach the rows that see its key and no others") {
  for (const int heads : {2, 16}) {
    AttentionCase c;
    c.query_lens = {30};
    c.seq_lens = {170};
    c.num_heads = heads;
    c.nonfinite_future = true;
    expect_attend(c);
    expect_splits(c, 3);
  }
}

TEST_CASE("scores far beyond the range of exp stay finite") {
  AttentionCase c;
  c.query_lens = {1, 40};
  c.seq_lens = {300, 300};
  c.scale = 1.0f;
  c.magnitude = 100.0f;
  AttentionSetup setup(c);
  make_cpu_ops(1)->attend(setup.params);
  // Scores of 1e3 carry an absolute error of 1e-4 in float32.
  CHECK(setup.difference(2e-3) == "");
}

TEST_CASE("an infinite sink silences the row, an infinitely small one is none") {
  AttentionCase c;
  c.query_lens = {3};
  c.seq_lens = {100};
  c.sinks = true;
  for (const int num_splits : {0, 2}) {
    AttentionSetup setup(c);
    setup.sinks = {std::numeric_limits<float>::infinity(), -std::numeric_limits<float>::infinity()};
    setup.params.score.sinks = setup.sinks.data();
    const auto ops = make_cpu_ops(1);
    std::vector<float> output(2 * 3 * 2 * 32), lse(2 * 3 * 2);
    const attn::SplitParams split{2, 3, output.data(), lse.data()};
    if (num_splits == 0) {
      ops->attend(setup.params);
    } else {
      ops->attend_splits(setup.params, split);
      ops->combine_splits(setup.params, split);
    }
    CHECK(setup.output.at(0) == 0.0f);
    CHECK(std::isinf(setup.lse.at(0)));
    c.sinks = false;
    AttentionSetup without(c);
    c.sinks = true;
    CHECK(setup.output.at(32) == doctest::Approx(without.expected_output[32]).epsilon(1e-4));
    CHECK(setup.lse.at(4) == doctest::Approx(without.expected_lse[3]).epsilon(1e-5));
  }
}

TEST_CASE("only the requests asked for are written") {
  AttentionCase c;
  c.query_lens = {2, 3, 2};
  c.seq_lens = {20, 30, 40};
  AttentionSetup setup(c);
  setup.params.first_request = 1;
  setup.params.num_requests = 1;
  make_cpu_ops(2)->attend(setup.params);
  CHECK(std::isnan(setup.output.at(2 * 2 * 32 - 1)));
  CHECK_FALSE(std::isnan(setup.output.at(2 * 2 * 32)));
  CHECK_FALSE(std::isnan(setup.output.at(5 * 2 * 32 - 1)));
  CHECK(std::isnan(setup.output.at(5 * 2 * 32)));
}

TEST_CASE("a static FP8 output is divided by its scale and saturates") {
  AttentionCase c;
  c.query_lens = {2};
  c.seq_lens = {20};
  c.output_dtype = Dtype::kE4M3;
  AttentionSetup setup(c);
  setup.params.output_scale = 0.001f;
  make_cpu_ops(1)->attend(setup.params);
  for (std::int64_t i = 0; i < 2 * 2 * 32; ++i) {
    const double wanted = setup.expected_output[static_cast<std::size_t>(i)] / 0.001;
    const double clamped = std::min(448.0, std::max(-448.0, wanted));
    CHECK(double{setup.output.at(i)} == doctest::Approx(clamped).epsilon(0.0630));
  }
}

TEST_CASE("two runs give the same bytes, whatever the number of threads") {
  const AttentionCase c = random_case(11, false);
  AttentionSetup a(c), b(c);
  make_cpu_ops(1)->attend(a.params);
  make_cpu_ops(3)->attend(b.params);
  CHECK(std::equal(a.output.bytes(), a.output.bytes() + a.output.size_bytes(), b.output.bytes()));
}

}  // namespace attnbench::cpu
