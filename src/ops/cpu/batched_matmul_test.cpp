#include <doctest/doctest.h>

#include <cmath>
#include <limits>

#include "ops/cpu/tensor_testing.h"
#include "ops/ops.h"

namespace attnbench::cpu {
namespace {

struct Product {
  Tensor a, b, c;
  attn::MatmulParams params{};

  /// A [batch, m, k], B [batch, k, n] or [batch, n, k], C [batch, m + 1, n + 1] with a margin that
  /// stays poisoned.
  Product(Dtype dtype, Dtype output_dtype, std::int64_t batches, std::int64_t m, std::int64_t n,
          std::int64_t k, bool transposed)
      : a(random_tensor(dtype, {batches, m, k}, 1)),
        b(random_tensor(dtype, {batches, transposed ? n : k, transposed ? k : n}, 2)),
        c(poisoned_tensor(output_dtype, {batches, m + 1, n + 1})) {
    params = {element_of(dtype),
              element_of(output_dtype),
              a.bytes(),
              m * k,
              k,
              b.bytes(),
              n * k,
              transposed ? k : n,
              transposed ? 1 : 0,
              c.bytes(),
              (m + 1) * (n + 1),
              n + 1,
              batches,
              m,
              n,
              k,
              0};
  }

  double exact(std::int64_t batch, std::int64_t i, std::int64_t j) const {
    double sum = 0;
    for (std::int64_t x = 0; x < params.k; ++x) {
      const std::int64_t right = params.b_transposed != 0 ? j * params.k + x : x * params.n + j;
      sum += double{a.at((batch * params.m + i) * params.k + x)} *
             double{b.at(batch * params.n * params.k + right)};
    }
    return sum;
  }
  float result(std::int64_t batch, std::int64_t i, std::int64_t j) const {
    return c.at((batch * (params.m + 1) + i) * (params.n + 1) + j);
  }
  /// Elements that differ from the double sum by more than one rounding of the output.
  int wrong() const {
    int count = 0;
    for (std::int64_t batch = 0; batch < params.num_batches; ++batch) {
      for (std::int64_t i = 0; i <= params.m; ++i) {
        for (std::int64_t j = 0; j <= params.n; ++j) {
          const float actual = result(batch, i, j);
          if (i == params.m || j == params.n) {
            count += std::isnan(actual) ? 0 : 1;
            continue;
          }
          const double expected = exact(batch, i, j);
          const double slack = 1e-6 * static_cast<double>(params.k);
          count +=
              std::fabs(double{actual} - expected) <= rounding_error(c.dtype(), expected, slack)
                  ? 0
                  : 1;
        }
      }
    }
    return count;
  }
};

}  // namespace

TEST_CASE("a batched product agrees with double sums in every element type and both orders of B") {
  for (const Dtype dtype : {Dtype::kF32, Dtype::kF16, Dtype::kBF16}) {
    for (const bool transposed : {false, true}) {
      for (const Dtype output : {dtype, Dtype::kF32}) {
        Product product(dtype, output, 3, 17, 33, 40, transposed);
        make_cpu_ops(2)->matmul(product.params);
        INFO(dtype_name(dtype), " to ", dtype_name(output), " transposed ", transposed);
        CHECK(product.wrong() == 0);
      }
    }
  }
}

TEST_CASE("products larger than a tile have no seams") {
  for (const bool transposed : {false, true}) {
    Product product(Dtype::kBF16, Dtype::kBF16, 2, 131, 259, 24, transposed);
    make_cpu_ops(2)->matmul(product.params);
    CHECK(product.wrong() == 0);
  }
}

TEST_CASE("single rows, single columns and a depth of one are products too") {
  for (const auto& [m, n, k] :
       {std::array{1, 300, 64}, std::array{64, 1, 33}, std::array{5, 7, 1}}) {
    Product product(Dtype::kF32, Dtype::kF32, 2, m, n, k, false);
    make_cpu_ops(1)->matmul(product.params);
    CHECK(product.wrong() == 0);
  }
}

TEST_CASE("heads of [T, N, P] are batches by their strides, whatever lies beside them") {
  // q_nope of 3 tokens and 2 heads inside [3, 2, 4 + 2], times W_UK_T [2, 4, 5] -> [3, 2, 5].
  Tensor query = random_tensor(Dtype::kBF16, {3, 2, 6}, 5);
  for (std::int64_t row = 0; row < 6; ++row) query.set(row * 6 + 5, NAN);
  const Tensor weight = random_tensor(Dtype::kBF16, {2, 4, 5}, 6);
  Tensor latent = poisoned_tensor(Dtype::kBF16, {3, 2, 5});
  const attn::MatmulParams params{attn::Element::kBF16,
                                  attn::Element::kBF16,
                                  query.bytes(),
                                  6,
                                  12,
                                  weight.bytes(),
                                  20,
                                  5,
                                  0,
                                  latent.bytes(),
                                  5,
                                  10,
                                  2,
                                  3,
                                  5,
                                  4,
                                  0};
  make_cpu_ops(2)->matmul(params);
  for (std::int64_t t = 0; t < 3; ++t) {
    for (std::int64_t h = 0; h < 2; ++h) {
      for (std::int64_t j = 0; j < 5; ++j) {
        double sum = 0;
        for (std::int64_t x = 0; x < 4; ++x) {
          sum += double{query.at((t * 2 + h) * 6 + x)} * double{weight.at((h * 4 + x) * 5 + j)};
        }
        const double actual = double{latent.at((t * 2 + h) * 5 + j)};
        CHECK(std::fabs(actual - sum) <= rounding_error(Dtype::kBF16, sum, 1e-6));
      }
    }
  }
}

TEST_CASE("NaN and infinity in a row of A stay in that row of C") {
  Product product(Dtype::kF32, Dtype::kF32, 1, 9, 20, 16, false);
  product.a.set(4 * 16 + 3, std::numeric_limits<float>::quiet_NaN());
  product.a.set(7 * 16, std::numeric_limits<float>::infinity());
  make_cpu_ops(1)->matmul(product.params);
  for (std::int64_t i = 0; i < 9; ++i) {
    for (std::int64_t j = 0; j < 20; ++j) {
      CHECK(std::isfinite(product.result(0, i, j)) == (i != 4 && i != 7));
    }
  }
}

TEST_CASE("a product over nothing is zero and a product of nothing writes nothing") {
  Product none(Dtype::kF32, Dtype::kF32, 2, 3, 4, 0, false);
  make_cpu_ops(1)->matmul(none.params);
  CHECK(none.wrong() == 0);
  Product empty(Dtype::kF32, Dtype::kF32, 2, 0, 4, 8, true);
  make_cpu_ops(1)->matmul(empty.params);
  CHECK(empty.wrong() == 0);
}

TEST_CASE("the number of threads does not change a product") {
  Product one(Dtype::kF32, Dtype::kF32, 2, 150, 270, 96, true);
  Product three(Dtype::kF32, Dtype::kF32, 2, 150, 270, 96, true);
  make_cpu_ops(1)->matmul(one.params);
  make_cpu_ops(3)->matmul(three.params);
  CHECK(same_bytes(one.c, three.c));
}

}  // namespace attnbench::cpu
