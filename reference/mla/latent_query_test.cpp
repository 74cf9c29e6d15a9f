#include "reference/mla/latent_query.h"

#include <algorithm>
#include <vector>

#include "reference/ops/test_support.h"
#include "reference/quantise/number_formats.h"

namespace attnbench {

using ops_test::error_of;
using ops_test::noise;
using ops_test::tensor_of;

TEST_CASE("the quantised MLA query is latent then rope of every head, times the reciprocal") {
  const Tensor latent = tensor_of(noise(2 * 3 * 8, 1), {2, 3, 8}, Dtype::kBF16);
  const Tensor rope = tensor_of(noise(2 * 3 * 4, 2), {2, 3, 4}, Dtype::kBF16);
  const float scale = 0.003f;
  const MlaQuantisedQuery query = quantise_mla_query(latent, rope, scale);
  CHECK(query.codes.shape() == std::vector<std::int64_t>{2, 3, 12});
  const float factor = 1.0f / scale;
  for (std::int64_t row = 0; row < 6; ++row) {
    for (std::int64_t d = 0; d < 12; ++d) {
      const float x = d < 8 ? latent.at(row * 8 + d) : rope.at(row * 4 + d - 8);
      CHECK(query.codes.data<std::uint8_t>()[row * 12 + d] == rn_e4m3(x * factor));
    }
  }
}

TEST_CASE("every row of a large MLA query is quantised, and what saturates is counted once") {
  constexpr std::int64_t kRows = 700;
  std::vector<float> values = noise(kRows * 4, 3);
  for (std::size_t row = 0; row < kRows; row += 7) values[row * 4 + 2] = 600;
  const Tensor latent = tensor_of(values, {kRows / 2, 2, 4});
  const Tensor rope = tensor_of(noise(kRows, 4), {kRows / 2, 2, 1});
  const MlaQuantisedQuery query = quantise_mla_query(latent, rope, 1);
  CHECK(query.saturated == kRows / 7);
  std::int64_t wrong = 0;
  for (std::int64_t row = 0; row < kRows; ++row) {
    const std::uint8_t* const codes = query.codes.data<std::uint8_t>() + row * 5;
    for (std::int64_t d = 0; d < 4; ++d) wrong += codes[d] != rn_e4m3(latent.at(row * 4 + d));
    wrong += codes[4] != rn_e4m3(rope.at(row));
  }
  CHECK(wrong == 0);
}

TEST_CASE("the MLA query is not divided by its scale") {
  // 175 / 7 = 25 is a tie that goes to 24; 175 * fl(1/7) is above 25.
  const Tensor x = tensor_of({175.0f}, {1, 1, 1});
  CHECK(quantise_mla_query(x, x, 7.0f).codes.at(0) == 26.0f);
}

TEST_CASE("MLA query elements beyond the range saturate and are counted") {
  const MlaQuantisedQuery query =
      quantise_mla_query(tensor_of({1.0f, 500.0f}, {1, 1, 2}), tensor_of({-500.0f}, {1, 1, 1}), 1);
  CHECK(query.saturated == 2);
  CHECK(query.codes.at(1) == 448.0f);
  CHECK(query.codes.at(2) == -448.0f);
}

TEST_CASE("the MLA query refuses parts that do not fit and bad scales") {
  const Tensor latent(Dtype::kBF16, {2, 3, 8});
  const auto quantise = [&](const Tensor& rope, float scale) {
    return error_of([&] { quantise_mla_query(latent, rope, scale); });
  };
  CHECK(quantise(Tensor(Dtype::kBF16, {2, 4, 4}), 1.0f) == ErrorKind::kShape);
  CHECK(quantise(Tensor(Dtype::kF16, {2, 3, 4}), 1.0f) == ErrorKind::kDtype);
  CHECK(quantise(Tensor(Dtype::kBF16, {2, 3, 4}), 0.0f) == ErrorKind::kValue);
  CHECK(quantise_mla_query(Tensor(Dtype::kBF16, {0, 3, 8}), Tensor(Dtype::kBF16, {0, 3, 4}), 1.0f)
            .codes.num_elements() == 0);
}

TEST_CASE("codes that another order of the projection's sum gives are known beforehand") {
  constexpr std::int64_t kTokens = 200, kHeads = 2, kNope = 64, kLatent = 96, kRope = 4;
  std::vector<float> values = noise(kTokens * kHeads * (kNope + kRope), 5);
  std::vector<float> weights = noise(kHeads * kNope * kLatent, 6);
  // Two large products cancel: what the sum loses between them depends on its order.
  for (std::size_t row = 0; row < kTokens * kHeads; ++row) {
    values[row * (kNope + kRope)] = 300.1f;
    values[row * (kNope + kRope) + kNope - 1] = -300.1f;
  }
  for (std::size_t head = 0; head < kHeads; ++head) {
    const auto first = weights.begin() + static_cast<std::ptrdiff_t>(head * kNope * kLatent);
    std::copy_n(first, kLatent, first + (kNope - 1) * kLatent);
  }
  const Tensor query = tensor_of(values, {kTokens, kHeads, kNope + kRope}, Dtype::kF32);
  const Tensor w_uk = tensor_of(weights, {kHeads, kNope, kLatent}, Dtype::kF32);
  const float scale = 0.05f;
  const MlaLatentQuery given = quantise_latent_query(query, w_uk, kTokens, scale, 1);
  std::vector<std::int32_t> rows(kTokens);
  for (std::int32_t i = 0; i < kTokens; ++i) rows[static_cast<std::size_t>(i)] = i;
  const std::vector<int> heads{0, 1};
  const std::vector<MlaOtherCode> others =
      other_mla_codes(query, w_uk, given, scale, rows, heads, kLatent);
  const auto find = [&](std::int64_t token, std::int64_t head, std::int64_t column) {
    return std::find_if(others.begin(), others.end(), [&](const MlaOtherCode& other) {
      return other.token == token && other.head == head && other.column == column;
    });
  };
  int differing = 0;
  for (std::int64_t token = 0; token < kTokens; ++token) {
    for (std::int64_t head = 0; head < kHeads; ++head) {
      for (std::int64_t column = 0; column < kLatent; ++column) {
        float sum = 0;  // downwards
        for (std::int64_t p = kNope - 1; p >= 0; --p) {
          sum += query.at((token * kHeads + head) * (kNope + kRope) + p) *
                 w_uk.at((head * kNope + p) * kLatent + column);
        }
        const std::int64_t place = (token * kHeads + head) * (kLatent + kRope) + column;
        const std::uint8_t code = rn_e4m3(scaled_by(round_to(Dtype::kF32, sum), 1.0f / scale));
        if (code == given.codes.data<std::uint8_t>()[place]) continue;
        ++differing;
        const auto other = find(token, head, column);
        REQUIRE(other != others.end());
        CHECK(other->dequantized == e4m3_value(code) * scale);
      }
    }
  }
  CHECK(differing > 0);
  // They are the exception even here, and a neighbour of the code that is given.
  CHECK(others.size() < kTokens * kHeads * kLatent / 8);
  for (const MlaOtherCode& other : others) {
    const float here = given.dequantized.at(
        (other.token * kHeads + other.head) * (kLatent + kRope) + other.column);
    CHECK(other.dequantized != here);
    CHECK(std::abs(other.dequantized - here) <= std::max(std::abs(here) / 7, scale / 256));
    CHECK(other.needed_error <= 1);
  }
  const std::vector<MlaOtherCode> few = other_mla_codes(query, w_uk, given, scale, rows, heads, 1);
  CHECK(few.size() < others.size());
  for (std::size_t i = 1; i < few.size(); ++i) {
    CHECK((few[i].token != few[i - 1].token || few[i].head != few[i - 1].head));
  }
}

}  // namespace attnbench
