#include "metadata/mask/attention_math.h"

#include <vector>

#include "metadata/mask/kernel_rules_testing.h"
#include "metadata/mask/visible_pairs.h"
#include "metadata/test_support.h"

namespace attnbench {
namespace {

Problem windowed(AttentionType type, std::int64_t window) {
  Problem problem;
  problem.attention.type = type;
  problem.attention.causal = type == AttentionType::kDecoder;
  problem.attention.sliding_window = window;
  problem.batch = {{5, 5}};
  return problem;
}

std::vector<std::int64_t> seen_by(const AttentionMath& math, std::int64_t position,
                                  std::int64_t seq_len) {
  std::vector<std::int64_t> keys;
  for (std::int64_t j = 0; j < seq_len; ++j) {
    if (is_allowed(math, math.ranges_of(0), position, j, seq_len)) keys.push_back(j);
  }
  return keys;
}

using Keys = std::vector<std::int64_t>;

}  // namespace

TEST_CASE("a decoder window of 3 shows the token itself and two before it") {
  const AttentionMath math =
      resolve_attention_math(windowed(AttentionType::kDecoder, 3), kFlashRules);
  CHECK(seen_by(math, 4, 5) == Keys{2, 3, 4});
  CHECK(seen_by(math, 1, 5) == Keys{0, 1});
}

TEST_CASE("an encoder window of 3 is symmetric except in FLASH_ATTN_IX, which keeps its quirk") {
  Problem problem = windowed(AttentionType::kEncoder, 3);
  for (const KernelRules& rules : {kFlashRules, kTritonRules}) {
    const AttentionMath math = resolve_attention_math(problem, rules);
    CHECK(seen_by(math, 0, 5) == Keys{0, 1, 2});
    CHECK(seen_by(math, 2, 5) == Keys{0, 1, 2, 3, 4});
    CHECK(seen_by(math, 4, 5) == Keys{2, 3, 4});
  }
  CHECK(seen_by(resolve_attention_math(problem, kFlashIxRules), 2, 5) == Keys{0, 1, 2});
  problem.attention.encoder_window = EncoderWindow::kSymmetric;
  CHECK(seen_by(resolve_attention_math(problem, kFlashIxRules), 2, 5) == Keys{0, 1, 2, 3, 4});
}

TEST_CASE("mm_prefix ranges override the window and the causal rule") {
  Problem problem = windowed(AttentionType::kDecoder, 2);
  problem.batch = {{6, 6}};
  problem.attention.mm_prefix_ranges[0] = {{1, 4}};
  const AttentionMath math = resolve_attention_math(problem, kTritonRules);
  CHECK(seen_by(math, 0, 6) == Keys{0});
  CHECK(seen_by(math, 1, 6) == Keys{0, 1, 2, 3, 4});
  CHECK(seen_by(math, 2, 6) == Keys{1, 2, 3, 4});
  CHECK(seen_by(math, 4, 6) == Keys{1, 2, 3, 4});
  CHECK(seen_by(math, 5, 6) == Keys{4, 5});
  problem.attention.mm_prefix_ranges[0] = {{3, 3}, {0, 0}};
  CHECK(resolve_attention_math(problem, kTritonRules).mm_prefix_ranges.empty());
}

TEST_CASE("the ALiBi form follows rule, causality and window") {
  Problem problem;
  problem.attention.alibi = AlibiKind::kLinear;
  const auto form = [&](const KernelRules& rules) {
    return resolve_attention_math(problem, rules).alibi;
  };
  CHECK(form(kTritonRules) == AlibiForm::kContextRelative);
  CHECK(form(kFlashRules) == AlibiForm::kKeyIndex);
  CHECK(form(kFlashIxRules) == AlibiForm::kKeyIndex);
  problem.attention.sliding_window = 8;
  CHECK(form(kFlashRules) == AlibiForm::kDistance);
  problem.attention.sliding_window.reset();
  problem.attention.causal = false;
  CHECK(form(kFlashRules) == AlibiForm::kDistance);
  problem.attention.alibi = AlibiKind::kSqrt;
  CHECK(form(kTritonRules) == AlibiForm::kSqrt);
  CHECK(form(kFlashIxRules) == AlibiForm::kSqrt);
}

TEST_CASE("the masks of single keys add up to the counted visible pairs") {
  Draw draw(7);
  for (int round = 0; round < 2000; ++round) {
    const std::int64_t query_len = draw(0, 9);
    const std::int64_t seq_len = draw(0, 12);
    AttentionMath math;
    math.causal = draw(0, 1) == 1;
    math.window_left = draw(-1, 5);
    math.window_right = math.causal ? 0 : draw(-1, 5);
    const std::vector<MmRange> ranges =
        draw(0, 2) == 0 ? std::vector<MmRange>{{draw(0, 3), draw(4, 14)}} : std::vector<MmRange>{};
    std::int64_t pairs = 0;
    for (std::int64_t i = 0; i < query_len; ++i) {
      for (std::int64_t j = 0; j < seq_len; ++j) {
        pairs += is_allowed(math, ranges, i + seq_len - query_len, j, seq_len) ? 1 : 0;
      }
    }
    CHECK(visible_pairs({query_len, seq_len, math.causal, math.window_left, math.window_right},
                        ranges) == pairs);
  }
}

namespace {

using enum WindowSubject;
using enum EncoderWindowRule;

TEST_CASE("window pairs follow rule and attention type") {
  CHECK(window_pair({}, kDecoder, kSymmetric) == WindowPair{-1, -1});
  for (const auto rule : {kSymmetric, kOneSided}) {
    CHECK(window_pair(3, kDecoder, rule) == WindowPair{2, 0});
    CHECK(window_pair(3, kEncoderDecoder, rule) == WindowPair{2, 0});
    CHECK(window_pair(3, kEncoderOnly, rule) == WindowPair{2, 2});
  }
  CHECK(window_pair(3, kEncoder, kSymmetric) == WindowPair{2, 2});
  CHECK(window_pair(3, kEncoder, kOneSided) == WindowPair{2, 0});
  CHECK(window_pair(3, kEncoder, kOneSided, true) == WindowPair{2, 2});
  CHECK(window_pair(1, kEncoder, kSymmetric) == WindowPair{0, 0});
}

TEST_CASE("a window holds at least the token itself, and causal closes its right side") {
  CHECK(error_of([] { window_pair(0, kDecoder, kSymmetric); }) == "E-CONFIG");
  CHECK(apply_causal({2, 2}, true) == WindowPair{2, 0});
  CHECK(apply_causal({-1, -1}, true) == WindowPair{-1, 0});
  CHECK(apply_causal({2, 2}, false) == WindowPair{2, 2});
}

}  // namespace

}  // namespace attnbench
