#include <doctest/doctest.h>

#include <array>
#include <cmath>
#include <limits>
#include <vector>

#include "ops/cpu/tensor_testing.h"
#include "ops/ops.h"

namespace attnbench::cpu::dcp_combine_test {
namespace {

constexpr float kInf = std::numeric_limits<float>::infinity();
const float kNan = std::numeric_limits<float>::quiet_NaN();

/// Partials [W, T, H, D] and LSEs [W, T, H] of W ranks.
struct Ranks {
  int world_size, num_tokens, num_heads, head_size;
  Tensor partial;
  std::vector<float> lse;

  Ranks(int w, int t, int h, int d, Dtype dtype = Dtype::kF32)
      : world_size(w),
        num_tokens(t),
        num_heads(h),
        head_size(d),
        partial(random_tensor(dtype, {w, t, h, d}, 1)) {
    const Tensor values = random_tensor(Dtype::kF32, {w, t, h}, 2, 3.0f);
    for (std::int64_t i = 0; i < values.num_elements(); ++i) lse.push_back(values.at(i));
  }
  std::int64_t per_rank() const { return std::int64_t{num_tokens} * num_heads * head_size; }
  attn::RankLses lses(bool base_two = false) const {
    return {lse.data(),      std::int64_t{num_tokens} * num_heads, num_heads, 1, world_size,
            base_two ? 1 : 0};
  }

  struct Combined {
    Tensor output, lse;
  };
  /// The form of §7.5.
  Combined combine(bool base_two = false, Dtype output_dtype = Dtype::kF32) const {
    Combined result{poisoned_tensor(output_dtype, {num_tokens, num_heads, head_size}),
                    poisoned_tensor(Dtype::kF32, {num_tokens, num_heads})};
    make_cpu_ops(2)->combine_dcp({lses(base_two), element_of(partial.dtype()), partial.bytes(),
                                  per_rank(), num_heads * head_size, head_size,
                                  element_of(output_dtype), result.output.bytes(),
                                  num_heads * head_size, head_size, result.lse.data<float>(),
                                  num_heads, 1, num_tokens, num_heads, head_size});
    return result;
  }
  /// The form of §7.3: every rank scales its partial, then all are added.
  Combined correct_and_sum(bool base_two = false) const {
    Combined result{Tensor(Dtype::kF32, {num_tokens, num_heads, head_size}),
                    poisoned_tensor(Dtype::kF32, {num_tokens, num_heads})};
    for (int rank = 0; rank < world_size; ++rank) {
      Tensor own = poisoned_tensor(Dtype::kF32, {num_tokens, num_heads, head_size});
      const auto offset = static_cast<std::size_t>(rank * per_rank()) * dtype_size(partial.dtype());
      make_cpu_ops(2)->correct_dcp({lses(base_two), rank, element_of(partial.dtype()),
                                    partial.bytes() + offset, num_heads * head_size, head_size,
                                    attn::Element::kF32, own.bytes(), num_heads * head_size,
                                    head_size, result.lse.data<float>(), num_heads, 1, num_tokens,
                                    num_heads, head_size, 0, 0});
      for (std::int64_t i = 0; i < own.num_elements(); ++i) {
        result.output.set(i, result.output.at(i) + own.at(i));
      }
    }
    return result;
  }
};

bool agree(const Tensor& a, const Tensor& b, float tolerance) {
  for (std::int64_t i = 0; i < a.num_elements(); ++i) {
    if (!(a.at(i) == b.at(i) || std::fabs(a.at(i) - b.at(i)) <= tolerance)) return false;
  }
  return true;
}

}  // namespace

TEST_CASE("two ranks of weight 1 and 3 combine to the golden values") {
  Ranks ranks(2, 1, 1, 1);
  ranks.partial.set(0, 1.0f);
  ranks.partial.set(1, 3.0f);
  ranks.lse = {0.0f, std::log(3.0f)};
  for (const auto& result : {ranks.combine(), ranks.correct_and_sum()}) {
    CHECK(result.output.at(0) == doctest::Approx(2.5).epsilon(1e-6));
    CHECK(result.lse.at(0) == doctest::Approx(1.3862944).epsilon(1e-6));
  }
  // The same in base 2: log2(1) and log2(3), combined log2(4).
  ranks.lse = {0.0f, std::log2(3.0f)};
  for (const auto& result : {ranks.combine(true), ranks.correct_and_sum(true)}) {
    CHECK(result.output.at(0) == doctest::Approx(2.5).epsilon(1e-6));
    CHECK(result.lse.at(0) == doctest::Approx(2.0).epsilon(1e-6));
  }
}

TEST_CASE("both forms agree with double sums for every world size and base") {
  for (const int world_size : {1, 2, 3, 8}) {
    for (const bool base_two : {false, true}) {
      const Ranks ranks(world_size, 5, 4, 9);
      const auto combined = ranks.combine(base_two);
      const auto summed = ranks.correct_and_sum(base_two);
      CHECK(agree(combined.output, summed.output, 1e-5f));
      CHECK(same_bytes(combined.lse, summed.lse));
      for (std::int64_t row = 0; row < 20; ++row) {
        double total = 0;
        const auto weight = [&](int rank) {
          const double lse = double{ranks.lse[static_cast<std::size_t>(rank * 20 + row)]};
          return base_two ? std::exp2(lse) : std::exp(lse);
        };
        for (int rank = 0; rank < world_size; ++rank) total += weight(rank);
        const double lse = base_two ? std::log2(total) : std::log(total);
        CHECK(double{combined.lse.at(row)} == doctest::Approx(lse).epsilon(1e-5));
        for (std::int64_t d = 0; d < 9; ++d) {
          double sum = 0;
          for (int rank = 0; rank < world_size; ++rank) {
            sum += weight(rank) / total *
                   double{ranks.partial.at(rank * ranks.per_rank() + row * 9 + d)};
          }
          CHECK(std::fabs(double{combined.output.at(row * 9 + d)} - sum) <= 1e-5);
        }
      }
    }
  }
}

TEST_CASE("a rank that saw nothing contributes exactly nothing, whatever its partial holds") {
  for (const float empty : {-kInf, kInf, kNan}) {
    Ranks ranks(2, 1, 1, 3);
    ranks.lse = {empty, 0.25f};
    for (const int d : {0, 1, 2}) ranks.partial.set(d, d == 1 ? kInf : kNan);
    for (const int d : {3, 4, 5}) ranks.partial.set(d, 5.0f);
    for (const auto& result : {ranks.combine(), ranks.correct_and_sum()}) {
      for (const int d : {0, 1, 2}) CHECK(result.output.at(d) == 5.0f);
      CHECK(result.lse.at(0) == 0.25f);
    }
  }
}

TEST_CASE("ranks that all saw nothing combine to zero and an empty LSE") {
  Ranks ranks(3, 1, 1, 2);
  ranks.lse = {kNan, -kInf, kInf};
  for (std::int64_t i = 0; i < 6; ++i) ranks.partial.set(i, kNan);
  for (const auto& result : {ranks.combine(), ranks.correct_and_sum()}) {
    CHECK(result.output.at(0) == 0.0f);
    CHECK(result.output.at(1) == 0.0f);
    CHECK(result.lse.at(0) == -kInf);
  }
}

TEST_CASE("a weight too small for f32 is no weight at all") {
  Ranks ranks(2, 1, 1, 1);
  ranks.lse = {0.0f, -200.0f};
  ranks.partial.set(0, 2.0f);
  ranks.partial.set(1, kInf);
  for (const auto& result : {ranks.combine(), ranks.correct_and_sum()}) {
    CHECK(result.output.at(0) == 2.0f);
    CHECK(result.lse.at(0) == 0.0f);
  }
}

TEST_CASE("a partial is corrected in place, heads before tokens in its LSEs") {
  // LSEs [W, H, T] as attention leaves them.
  Tensor partial = random_tensor(Dtype::kBF16, {2, 3, 4}, 1);
  const Tensor before = partial;
  const std::vector<float> lse(2 * 3 * 2, 1.0f);  // two ranks of the same weight: factor 1/2
  Tensor combined = poisoned_tensor(Dtype::kF32, {3, 2});
  const attn::RankLses lses{lse.data(), 6, 1, 2, 2, 0};
  make_cpu_ops(1)->correct_dcp({lses, 1, attn::Element::kBF16, partial.bytes(), 12, 4,
                                attn::Element::kBF16, partial.bytes(), 12, 4,
                                combined.data<float>(), 1, 2, 2, 3, 4, 0, 0});
  for (std::int64_t i = 0; i < 24; ++i) {
    // exp(-ln 2) is 0.5 to one ulp, which rounding to bf16 hides or turns into one step.
    CHECK(partial.at(i) == doctest::Approx(before.at(i) / 2).epsilon(0.008));
  }
  for (std::int64_t i = 0; i < 6; ++i) {
    CHECK(combined.at(i) == doctest::Approx(1.0 + std::log(2.0)).epsilon(1e-6));
  }
}

TEST_CASE("a partial is corrected into parts of heads, the bytes those of one part") {
  constexpr int kTokens = 3;
  constexpr int kHeads = 4;
  constexpr int kWidth = 5;
  const Tensor partial = random_tensor(Dtype::kF32, {kTokens, kHeads, kWidth}, 4);
  const Tensor lse = random_tensor(Dtype::kF32, {2, kHeads, kTokens}, 5);
  const attn::RankLses lses{lse.data<float>(), kHeads * kTokens, 1, kTokens, 2, 0};
  const auto correct = [&](int part_heads) {
    Tensor output = poisoned_tensor(Dtype::kF32, {kTokens * kHeads, kWidth});
    const int heads = part_heads == 0 ? kHeads : part_heads;
    make_cpu_ops(1)->correct_dcp({lses, 1, attn::Element::kF32, partial.bytes(), kHeads * kWidth,
                                  kWidth, attn::Element::kF32, output.bytes(), heads * kWidth,
                                  kWidth, nullptr, 0, 0, kTokens, kHeads, kWidth, part_heads,
                                  kTokens * heads * kWidth});
    return output;
  };
  const Tensor whole = correct(0);
  const Tensor parts = correct(2);
  for (int token = 0; token < kTokens; ++token) {
    for (int head = 0; head < kHeads; ++head) {
      for (int i = 0; i < kWidth; ++i) {
        CHECK(parts.at(((head / 2 * kTokens + token) * 2 + head % 2) * kWidth + i) ==
              whole.at((token * kHeads + head) * kWidth + i));
      }
    }
  }
}

TEST_CASE("the sum over ranks is rounded once to a 16-bit output") {
  const Ranks ranks(4, 3, 2, 8, Dtype::kBF16);
  const auto wide = ranks.combine(false, Dtype::kF32);
  const auto narrow = ranks.combine(false, Dtype::kBF16);
  CHECK(same_bytes(narrow.output, convert(wide.output, Dtype::kBF16)));
}

TEST_CASE("combining without an LSE wanted, or without tokens, writes nothing else") {
  const Ranks ranks(2, 1, 1, 2);
  Tensor output = poisoned_tensor(Dtype::kF32, {2});
  attn::DcpCombineParams params{ranks.lses(),
                                attn::Element::kF32,
                                ranks.partial.bytes(),
                                2,
                                2,
                                2,
                                attn::Element::kF32,
                                output.bytes(),
                                2,
                                2,
                                nullptr,
                                1,
                                1,
                                0,
                                1,
                                2};
  const auto ops = make_cpu_ops(2);
  ops->combine_dcp(params);
  CHECK(std::isnan(output.at(0)));
  params.num_tokens = 1;
  ops->combine_dcp(params);
  CHECK_FALSE(std::isnan(output.at(0)));
}

}  // namespace attnbench::cpu::dcp_combine_test
