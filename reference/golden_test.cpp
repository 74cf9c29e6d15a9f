// The worked examples of semantics §16 that attention itself answers.
#include <doctest/doctest.h>

#include <set>

#include "reference/naive_attention.h"

namespace attnbench::golden_test {
namespace {

ReferenceOutput reference_of(const NaiveCase& c) {
  return reference_attention(c.math, c.inputs(), c.all_rows()).value();
}

/// All scores equal and one-hot values, so that the output of a row shows which keys it sees.
NaiveCase one_hot_case(int query_len, int seq_len) {
  NaiveCase c;
  c.v_head_size = seq_len;
  c.add_request(query_len, seq_len);
  c.fill(Dtype::kF32, [] { return 0.0f; });
  for (int key = 0; key < seq_len; ++key) c.value.set(key * seq_len + key, 1.0f);
  return c;
}

std::set<int> keys_seen(const NaiveCase& c, int row) {
  const ReferenceOutput result = reference_of(c);
  std::set<int> keys;
  for (int key = 0; key < c.v_head_size; ++key) {
    if (result.output[static_cast<std::size_t>(row * c.v_head_size + key)] > 0) keys.insert(key);
  }
  return keys;
}

using Keys = std::set<int>;

}  // namespace

TEST_CASE("the sinks example") {
  NaiveCase c;
  c.math.window_right = 0;
  c.add_request(1, 3);
  c.query = Tensor::from_f32(std::vector<float>{1}, {1, 1, 1});
  c.key = Tensor::from_f32(std::vector<float>{0.5f, -1, 2}, {3, 1, 1});
  c.value = Tensor::from_f32(std::vector<float>{1, 2, 4}, {3, 1, 1});
  ReferenceOutput result = reference_of(c);
  CHECK(std::abs(result.output[0] - 3.3959037) < 5e-8);
  CHECK(std::abs(result.lse[0] - std::log(std::exp(0.5) + std::exp(-1) + std::exp(2))) < 1e-15);
  c.sinks = {1};
  result = reference_of(c);
  CHECK(std::abs(result.output[0] - 2.6345155) < 5e-8);
  CHECK(std::abs(result.lse[0] - 2.4951819) < 5e-8);
}

TEST_CASE("the mm_prefix example") {
  NaiveCase c = one_hot_case(6, 6);
  c.math.window_left = 1;
  c.math.window_right = 0;
  c.math.mm_prefix_ranges = {{{1, 4}}};
  CHECK(keys_seen(c, 0) == Keys{0});
  CHECK(keys_seen(c, 1) == Keys{0, 1, 2, 3, 4});
  for (const int row : {2, 3, 4}) CHECK(keys_seen(c, row) == Keys{1, 2, 3, 4});
  CHECK(keys_seen(c, 5) == Keys{4, 5});
  c.math.mm_prefix_ranges = {{{0, 1}}};
  CHECK(keys_seen(c, 0) == Keys{0, 1});
  c.math.mm_prefix_ranges = {{{4, 100}}};
  CHECK(keys_seen(c, 4) == Keys{3, 4, 5});
}

TEST_CASE("the window examples") {
  NaiveCase encoder = one_hot_case(5, 5);
  encoder.math.causal = false;
  encoder.math.window_left = encoder.math.window_right = 2;
  CHECK(keys_seen(encoder, 0) == Keys{0, 1, 2});
  CHECK(keys_seen(encoder, 2) == Keys{0, 1, 2, 3, 4});
  CHECK(keys_seen(encoder, 4) == Keys{2, 3, 4});
  NaiveCase decoder = one_hot_case(5, 5);
  decoder.math.window_left = 2;
  decoder.math.window_right = 0;
  CHECK(keys_seen(decoder, 4) == Keys{2, 3, 4});
  CHECK(keys_seen(decoder, 1) == Keys{0, 1});
}

TEST_CASE("the sqrt-ALiBi example") {
  NaiveCase c = one_hot_case(1, 10);
  c.math.window_right = 0;
  c.math.alibi = AlibiForm::kSqrt;
  c.alibi_slopes = {0.5f};
  const std::vector<double> output = reference_of(c).output;
  const auto bias = [&](std::size_t key) { return std::log(output[key] / output[9]); };
  CHECK(bias(9) == 0);
  CHECK(bias(5) == doctest::Approx(-1.0).epsilon(1e-14));
  CHECK(bias(0) == doctest::Approx(-1.5).epsilon(1e-14));
}

}  // namespace attnbench::golden_test
