#include "reference/mla/latent_query.h"

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

}  // namespace attnbench
