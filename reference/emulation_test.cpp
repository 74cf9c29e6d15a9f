#include <doctest/doctest.h>

#include <algorithm>
#include <cmath>
#include <limits>
#include <random>

#include "reference/naive_attention.h"

namespace attnbench {
namespace {

NaiveCase normal_case(Dtype dtype, int query_len = 70, int seq_len = 400) {
  NaiveCase c;
  c.num_heads = 4;
  c.num_kv_heads = 2;
  c.head_size = c.v_head_size = 32;
  c.math.softmax_scale = 0.25;
  c.math.window_right = 0;
  c.add_request(query_len, seq_len);
  std::mt19937_64 generator(7);
  std::normal_distribution<float> normal;
  c.fill(dtype, [&] { return normal(generator); });
  return c;
}

ReferenceOutput emulation_of(const NaiveCase& c, Dtype storage, Dtype probability,
                             int num_threads = 1) {
  ReferenceOptions options;
  options.num_threads = num_threads;
  return emulate_attention(c.math, c.inputs(), {storage, probability}, c.all_rows(), options)
      .value();
}

/// ‖emulated - reference‖ / ‖reference‖ of the outputs.
double relative_error(const NaiveCase& c, Dtype storage, Dtype probability) {
  const ReferenceOutput reference = reference_attention(c.math, c.inputs(), c.all_rows()).value();
  const ReferenceOutput emulated = emulation_of(c, storage, probability);
  double error = 0;
  double norm = 0;
  for (std::size_t i = 0; i < reference.output.size(); ++i) {
    error += std::pow(emulated.output[i] - reference.output[i], 2);
    norm += std::pow(reference.output[i], 2);
  }
  return std::sqrt(error / norm);
}

/// One row and two keys with the given scores (D = 2: coarse and fine part) and values 0 and 1.
NaiveCase two_key_case(float coarse0, float fine0, float coarse1, float fine1) {
  NaiveCase c;
  c.head_size = 2;
  c.math.window_right = 0;
  c.add_request(1, 2);
  c.query = Tensor::from_f32(std::vector<float>{1, 1}, {1, 1, 2});
  c.key = Tensor::from_f32(std::vector<float>{coarse0, fine0, coarse1, fine1}, {2, 1, 2});
  c.value = Tensor::from_f32(std::vector<float>{0, 1}, {2, 1, 1});
  return c;
}

}  // namespace

TEST_CASE("the emulation errs by the order of its storage precision") {
  const double bf16 = relative_error(normal_case(Dtype::kBF16), Dtype::kBF16, Dtype::kBF16);
  const double f16 = relative_error(normal_case(Dtype::kF16), Dtype::kF16, Dtype::kF16);
  const double f32 = relative_error(normal_case(Dtype::kF32), Dtype::kF32, Dtype::kF32);
  CHECK(bf16 > 0x1p-11);
  CHECK(bf16 < 0x1p-6);
  CHECK(f16 > 0x1p-14);
  CHECK(f16 < 0x1p-9);
  CHECK(f32 > 0);
  CHECK(f32 < 0x1p-20);
}

TEST_CASE("probabilities in e4m3 cost accuracy") {
  const NaiveCase c = normal_case(Dtype::kBF16);
  CHECK(relative_error(c, Dtype::kBF16, Dtype::kE4M3) >
        2 * relative_error(c, Dtype::kBF16, Dtype::kBF16));
}

TEST_CASE("scores keep the precision of float32") {
  // In bf16 1 + 2^-9 would read back as 1, so that both keys would weigh the same.
  const NaiveCase c = two_key_case(1, 0x1p-9f, 1, 0);
  const double weight = 1 / (1 + std::exp(-0x1p-9));  // of the first key, whose value is 0
  const ReferenceOutput result = emulation_of(c, Dtype::kF32, Dtype::kF32);
  CHECK(result.output[0] == doctest::Approx(1 - weight).epsilon(1e-6));
  const double lse = 1 + 0x1p-9 - std::log(weight);
  CHECK(emulation_of(c, Dtype::kBF16, Dtype::kBF16).lse[0] == doctest::Approx(lse).epsilon(1e-7));
}

TEST_CASE("probabilities are rounded for the product and not for their sum") {
  const NaiveCase c = two_key_case(0, 0, -1, 0);
  const double sum = 1 + std::exp(-1.0);
  // e^-1 = 0.36788 is 0.3671875 in bf16 (steps of 2^-9) and 0.375 in e4m3 (steps of 2^-5); the
  // quotients 0.26843 and 0.27415 are 137 and 140 steps of 2^-9.
  CHECK(emulation_of(c, Dtype::kBF16, Dtype::kBF16).output[0] == 137 * 0x1p-9);
  CHECK(emulation_of(c, Dtype::kBF16, Dtype::kE4M3).output[0] == 140 * 0x1p-9);
  CHECK(emulation_of(c, Dtype::kF32, Dtype::kE4M3).output[0] ==
        doctest::Approx(0.375 / sum).epsilon(1e-6));
}

TEST_CASE("small probabilities keep their mantissa in e4m3: they are shifted by 2^8") {
  // e^-8 * 2^8 = 0.0858768 is 11 steps of 2^-7 = 0.0859375; unshifted, e^-8 would be 0.
  const NaiveCase c = two_key_case(0, 0, -8, 0);
  CHECK(emulation_of(c, Dtype::kF32, Dtype::kE4M3).output[0] ==
        doctest::Approx(0.0859375 / 256 / (1 + std::exp(-8.0))).epsilon(1e-6));
}

TEST_CASE("emulated outputs are values of the storage type") {
  const NaiveCase c = normal_case(Dtype::kF16);
  for (const double value : emulation_of(c, Dtype::kF16, Dtype::kF16).output) {
    const auto stored = static_cast<float>(value);
    REQUIRE(round_to(Dtype::kF16, stored) == stored);
  }
}

TEST_CASE("large scores do not overflow the f16 emulation") {
  const ReferenceOutput result =
      emulation_of(two_key_case(100000, 0, 0, 0), Dtype::kF16, Dtype::kF16);
  CHECK(result.output[0] == 0);
  CHECK(std::isfinite(result.lse[0]));
}

TEST_CASE("masks, bias, soft cap, sinks and empty rows are those of the reference") {
  NaiveCase c = normal_case(Dtype::kF32, 300, 290);
  c.math.window_left = 20;
  c.math.logits_soft_cap = 10;
  c.math.alibi = AlibiForm::kDistance;
  c.alibi_slopes = {0.5f, 0.25f, 0.125f, 0.0625f};
  c.sinks = {0.0f, 1.0f, -1.0f, 3.0f};
  CHECK(relative_error(c, Dtype::kF32, Dtype::kF32) < 1e-6);
  const ReferenceOutput result = emulation_of(c, Dtype::kF32, Dtype::kF32);
  CHECK(result.output[0] == 0);  // position -10
  CHECK(result.lse[300] == 1.0);
}

TEST_CASE("the emulation gives the same bits for any number of threads") {
  const NaiveCase c = normal_case(Dtype::kBF16);
  const ReferenceOutput one = emulation_of(c, Dtype::kBF16, Dtype::kBF16, 1);
  const ReferenceOutput three = emulation_of(c, Dtype::kBF16, Dtype::kBF16, 3);
  CHECK(one.output == three.output);
  CHECK(one.lse == three.lse);
}

TEST_CASE("the size of a row and what float32 loses on it follow their definitions") {
  NaiveCase c = normal_case(Dtype::kF32, 5, 40);
  const ReferenceOutput reference = reference_attention(c.math, c.inputs(), c.all_rows()).value();
  for (std::int64_t row = 0; row < 5; ++row) {
    for (std::int64_t head = 0; head < c.num_heads; ++head) {
      const NaiveResult exact = naive_attention(c, 0, row, head);
      long double norm = 0, spread = 0;
      for (const long double value : exact.output) norm += value * value;
      for (std::int64_t j = 0; j <= 35 + row; ++j) {
        const long double p = std::exp(naive_score(c, 0, row, head, 35 + row, j) - exact.lse);
        for (std::int64_t d = 0; d < c.v_head_size; ++d) {
          const long double v = c.value.at((j * c.num_kv_heads + head / 2) * c.v_head_size + d);
          spread += p * p * v * v;
        }
      }
      const auto at = static_cast<std::size_t>(row * c.num_heads + head);
      const long double size = std::sqrt(std::max(norm, spread));
      CHECK(reference.row_size[at] == doctest::Approx(static_cast<double>(size)).epsilon(1e-9));
    }
  }
}

TEST_CASE("an emulation in float32 errs by about what float32 is said to lose, at any scores") {
  for (const double scale : {0.01, 0.25, 4.0, 64.0}) {
    NaiveCase c = normal_case(Dtype::kF32);
    c.math.softmax_scale = scale;
    const ReferenceOutput reference = reference_attention(c.math, c.inputs(), c.all_rows()).value();
    const ReferenceOutput emulated = emulation_of(c, Dtype::kF32, Dtype::kF32);
    CHECK(emulated.row_size.empty());
    double most = 0, most_of_lse = 0;
    for (std::size_t at = 0; at < reference.row_size.size(); ++at) {
      double square = 0;
      for (std::size_t d = 0; d < 32; ++d) {
        square += std::pow(emulated.output[at * 32 + d] - reference.output[at * 32 + d], 2);
      }
      most = std::max(most, std::sqrt(square) / reference.output_loss[at]);
      const std::size_t flat = at % 4 * reference.rows.size() + at / 4;
      most_of_lse = std::max(
          most_of_lse, std::abs(emulated.lse[flat] - reference.lse[flat]) / reference.lse_loss[at]);
    }
    CAPTURE(scale);
    CHECK(most < 2);
    CHECK(most > 0.01);
    CHECK(most_of_lse < 2);
    CHECK(most_of_lse > 0.01);
  }
}

TEST_CASE("a row without keys has no size, and values that are not finite do not count in it") {
  NaiveCase c = two_key_case(0, 0, 0, 0);
  c.value =
      Tensor::from_f32(std::vector<float>{3, std::numeric_limits<float>::quiet_NaN()}, {2, 1, 1});
  const ReferenceOutput nan = reference_attention(c.math, c.inputs(), c.all_rows()).value();
  CHECK(std::isnan(nan.output[0]));
  CHECK(nan.row_size[0] == doctest::Approx(1.5));  // sqrt(0.5^2 * 3^2)
  c.seq_lens[0] = 0;
  const ReferenceOutput empty = reference_attention(c.math, c.inputs(), c.all_rows()).value();
  CHECK(empty.row_size[0] == 0);
}

}  // namespace attnbench
