#include <doctest/doctest.h>

#include <cmath>
#include <cstdint>
#include <limits>
#include <vector>

#include "ops/ops.h"

namespace attnbench::cpu::merge_test {
namespace {

constexpr float kInf = std::numeric_limits<float>::infinity();
constexpr float kNan = std::numeric_limits<float>::quiet_NaN();

struct Merged {
  float output = kNan;
  float lse = kNan;
};

/// One token, one head, one element of float32.
Merged merge_one(float prefix, float prefix_lse, float suffix, float suffix_lse,
                 bool merged = true) {
  Merged result;
  attn::MergeParams params{};
  params.element = params.output_element = attn::Element::kF32;
  params.output = &result.output;
  params.output_lse = &result.lse;
  params.output_lse_stride = 1;
  params.prefix_output = &prefix;
  params.prefix_lse = &prefix_lse;
  params.suffix_output = &suffix;
  params.suffix_lse = &suffix_lse;
  params.num_tokens = 1;
  params.num_merged = merged ? 1 : 0;
  params.num_heads = params.head_size = 1;
  params.prefix_head_stride = 1;
  make_cpu_ops(1)->merge(params);
  return result;
}

}  // namespace

TEST_CASE("merge gives the golden values of the specification") {
  const Merged merged = merge_one(1.0f, 0.0f, 3.0f, std::log(3.0f));
  CHECK(merged.output == doctest::Approx(2.5));
  CHECK(merged.lse == doctest::Approx(1.3862944));
  CHECK(merge_one(2.0f, -kInf, 5.0f, 0.25f).output == 5.0f);
  CHECK(merge_one(2.0f, -kInf, 5.0f, 0.25f).lse == 0.25f);
}

TEST_CASE("either infinity marks an empty side, and two empty sides give 0 and -inf") {
  CHECK(merge_one(2.0f, kInf, 5.0f, 0.25f).output == 5.0f);
  CHECK(merge_one(2.0f, 0.5f, 5.0f, kInf).output == 2.0f);
  for (const float a : {kInf, -kInf}) {
    for (const float b : {kInf, -kInf}) {
      CHECK(merge_one(2.0f, a, 5.0f, b).output == 0.0f);
      CHECK(merge_one(2.0f, a, 5.0f, b).lse == -kInf);
    }
  }
}

TEST_CASE("a side without weight contributes nothing even when it holds NaN") {
  CHECK(merge_one(kNan, -kInf, 5.0f, 1.0f).output == 5.0f);
  CHECK(merge_one(3.0f, 1.0f, kInf, -200.0f).output == 3.0f);
}

TEST_CASE("a NaN LSE shows in the result, also beside an empty side") {
  CHECK(std::isnan(merge_one(1.0f, kNan, 2.0f, 0.0f).output));
  CHECK(std::isnan(merge_one(1.0f, 0.0f, 2.0f, kNan).lse));
  CHECK(std::isnan(merge_one(1.0f, kNan, 2.0f, -kInf).output));
}

TEST_CASE("an e4m3 output is multiplied by the reciprocal of its scale and saturates") {
  const std::vector<float> prefix{1.0f, 4000.0f};
  const std::vector<float> suffix{3.0f, 4000.0f};
  const float lse = 0.0f;
  std::uint8_t output[2] = {0xFF, 0xFF};
  attn::MergeParams params{};
  params.element = attn::Element::kF32;
  params.output_element = attn::Element::kE4M3;
  params.output = output;
  params.prefix_output = prefix.data();
  params.suffix_output = suffix.data();
  params.prefix_lse = params.suffix_lse = &lse;
  params.num_tokens = params.num_merged = 1;
  params.num_heads = 1;
  params.head_size = 2;
  params.prefix_head_stride = 2;
  params.output_scale = 0.5f;
  make_cpu_ops(1)->merge(params);
  CHECK(output[0] == 0x48);  // 2 / 0.5 = 4
  CHECK(output[1] == 0x7E);  // 448
}

TEST_CASE("rows past the merged ones copy the suffix and never read the prefix") {
  CHECK(merge_one(kNan, kNan, 7.0f, 2.0f, false).output == 7.0f);
  CHECK(merge_one(kNan, kNan, 7.0f, 2.0f, false).lse == 2.0f);
}

TEST_CASE("a padded head stride of the prefix is honoured") {
  // Two tokens, two heads of size 1, prefix rows three elements apart.
  const std::vector<float> prefix{1, kNan, kNan, 2, kNan, kNan, 3, kNan, kNan, 4, kNan, kNan};
  const std::vector<float> suffix{10, 20, 30, 40};
  const std::vector<float> lse(4, 0.0f);
  std::vector<float> output(4, kNan);
  attn::MergeParams params{};
  params.element = params.output_element = attn::Element::kF32;
  params.output = output.data();
  params.prefix_output = prefix.data();
  params.prefix_lse = params.suffix_lse = lse.data();
  params.suffix_output = suffix.data();
  params.num_tokens = params.num_merged = 2;
  params.num_heads = 2;
  params.head_size = 1;
  params.prefix_head_stride = 3;
  make_cpu_ops(1)->merge(params);
  CHECK(output == std::vector<float>{5.5f, 11.0f, 16.5f, 22.0f});
}

}  // namespace attnbench::cpu::merge_test
