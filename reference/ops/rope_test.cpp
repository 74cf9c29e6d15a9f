#include "reference/ops/rope.h"

#include <cmath>
#include <complex>

#include "reference/ops/test_support.h"

namespace attnbench::rope_test {

using ops_test::error_of;
using ops_test::noise;
using ops_test::tensor_of;

namespace {

const std::vector<std::int64_t> kPositions{0, 1, 999, 17, 17};

struct Tolerance {
  Dtype dtype;
  double atol;
  double rtol;
};
constexpr Tolerance kTolerances[] = {
    {Dtype::kF16, 1e-3, 1e-3}, {Dtype::kBF16, 1e-3, 1.6e-2}, {Dtype::kF32, 1e-5, 1.3e-6}};

/// Element d of a head of `original` turned in f64: the pair is a complex number times e^(i angle).
double turned(const Tensor& original, std::int64_t head_start, std::int64_t d, std::int64_t rot,
              RopeStyle style, double position) {
  if (d >= rot) return static_cast<double>(original.at(head_start + d));
  const std::int64_t half = rot / 2;
  const bool neox = style == RopeStyle::kNeox;
  const std::int64_t k = neox ? d % half : d / 2;
  const std::int64_t first = neox ? k : 2 * k;
  const std::int64_t second = neox ? k + half : 2 * k + 1;
  const double angle = position / std::pow(10000.0, 2.0 * double(k) / double(rot));
  const std::complex<double> pair(double(original.at(head_start + first)),
                                  double(original.at(head_start + second)));
  const std::complex<double> result = pair * std::polar(1.0, angle);
  return d == first ? result.real() : result.imag();
}

}  // namespace

TEST_CASE("rotation agrees with complex multiplication in double precision") {
  const std::int64_t head_size = 80;
  for (const Tolerance& tolerance : kTolerances) {
    for (RopeStyle style : {RopeStyle::kNeox, RopeStyle::kGptJ}) {
      for (std::int64_t rot : {80, 32, 2}) {
        const Tensor original = tensor_of(noise(5 * 3 * 80), {5, 3, head_size}, tolerance.dtype);
        Tensor query = original;
        const Tensor cache = make_cos_sin_cache(1000, rot, Dtype::kF32);
        apply_rope(kPositions, cache, style, query);
        for (std::int64_t i = 0; i < query.num_elements(); ++i) {
          const auto position = kPositions[static_cast<std::size_t>(i / (3 * head_size))];
          const double expected = turned(original, i / head_size * head_size, i % head_size, rot,
                                         style, double(position));
          REQUIRE(std::fabs(double(query.at(i)) - expected) <=
                  tolerance.atol + tolerance.rtol * std::fabs(expected));
        }
      }
    }
  }
}

TEST_CASE("many tokens turn as each of them alone") {
  constexpr std::int64_t kTokens = 200, kRow = 2 * 8;
  std::vector<std::int64_t> positions(kTokens);
  for (std::int64_t t = 0; t < kTokens; ++t) positions[static_cast<std::size_t>(t)] = t * 37 % 500;
  const Tensor original = tensor_of(noise(kTokens * kRow), {kTokens, 2, 8});
  const Tensor cache = make_cos_sin_cache(500, 8, Dtype::kF32);
  Tensor rotated = original;
  apply_rope(positions, cache, RopeStyle::kNeox, rotated);
  const std::vector<double> exact = rotated_rows(positions, cache, RopeStyle::kNeox, original);
  std::int64_t wrong = 0;
  for (std::int64_t t = 0; t < kTokens; ++t) {
    Tensor alone(Dtype::kF32, {1, 2, 8});
    for (std::int64_t i = 0; i < kRow; ++i) alone.set(i, original.at(t * kRow + i));
    const std::span<const std::int64_t> position(&positions[static_cast<std::size_t>(t)], 1);
    const std::vector<double> row = rotated_rows(position, cache, RopeStyle::kNeox, alone);
    apply_rope(position, cache, RopeStyle::kNeox, alone);
    for (std::int64_t i = 0; i < kRow; ++i) {
      wrong += rotated.at(t * kRow + i) != alone.at(i);
      wrong += exact[static_cast<std::size_t>(t * kRow + i)] != row[static_cast<std::size_t>(i)];
    }
  }
  CHECK(wrong == 0);
}

TEST_CASE("a quarter turn swaps the two elements of a pair") {
  // cos = 0, sin = 1 for both pairs.
  const Tensor cache = tensor_of({0, 0, 1, 1}, {1, 4});
  const std::vector<std::int64_t> positions{0};
  Tensor neox = tensor_of({1, 2, 3, 4, 5}, {1, 1, 5});
  apply_rope(positions, cache, RopeStyle::kNeox, neox);
  CHECK(std::vector<float>(neox.data<float>(), neox.data<float>() + 5) ==
        std::vector<float>{-3, -4, 1, 2, 5});
  Tensor gpt_j = tensor_of({1, 2, 3, 4, 5}, {1, 1, 5});
  apply_rope(positions, cache, RopeStyle::kGptJ, gpt_j);
  CHECK(std::vector<float>(gpt_j.data<float>(), gpt_j.data<float>() + 5) ==
        std::vector<float>{-2, 1, -4, 3, 5});
}

TEST_CASE("query and key of different head counts turn by the same angles") {
  const Tensor head = tensor_of(noise(16), {1, 1, 16}, Dtype::kBF16);
  Tensor query(Dtype::kBF16, {1, 3, 16});
  Tensor key(Dtype::kBF16, {1, 1, 16});
  for (std::int64_t i = 0; i < 48; ++i) query.set(i, head.at(i % 16));
  for (std::int64_t i = 0; i < 16; ++i) key.set(i, head.at(i));
  const Tensor cache = make_cos_sin_cache(8, 16, Dtype::kBF16);
  apply_rope(std::vector<std::int64_t>{5}, cache, RopeStyle::kNeox, query, &key);
  CHECK(key.at(0) != head.at(0));
  for (std::int64_t i = 0; i < 48; ++i) CHECK(query.at(i) == key.at(i % 16));
}

TEST_CASE("the table holds cosines first, then sines, of position over powers of the base") {
  const Tensor cache = make_cos_sin_cache(4, 6, Dtype::kF32, 1000.0);
  CHECK(cache.shape() == std::vector<std::int64_t>{4, 6});
  CHECK(cache.at(0) == 1.0f);
  CHECK(cache.at(3) == 0.0f);
  // base^(-2/6) = 0.1, base^(-4/6) = 0.01
  CHECK(cache.at(3 * 6 + 0) == doctest::Approx(std::cos(3.0)));
  CHECK(cache.at(3 * 6 + 1) == doctest::Approx(std::cos(0.3)));
  CHECK(cache.at(3 * 6 + 2) == doctest::Approx(std::cos(0.03)));
  CHECK(cache.at(3 * 6 + 3) == doctest::Approx(std::sin(3.0)));
  CHECK(cache.at(3 * 6 + 5) == doctest::Approx(std::sin(0.03)));
}

TEST_CASE("the table is right at far positions, where f32 frequencies are off by radians") {
  const Tensor cache = make_cos_sin_cache(1'000'000, 4, Dtype::kF32);
  CHECK(cache.at(999'999 * 4 + 1) == doctest::Approx(std::cos(9999.99)).epsilon(1e-5));
}

TEST_CASE("no tokens are fine") {
  Tensor query(Dtype::kBF16, {0, 4, 64});
  apply_rope({}, make_cos_sin_cache(8, 64, Dtype::kBF16), RopeStyle::kNeox, query);
  CHECK(query.num_elements() == 0);
}

TEST_CASE("a position outside the table is refused before anything is rotated") {
  const Tensor original = tensor_of(noise(2 * 8), {2, 1, 8});
  const Tensor cache = make_cos_sin_cache(10, 8, Dtype::kF32);
  for (std::int64_t bad : {std::int64_t{-1}, std::int64_t{10}}) {
    Tensor query = original;
    CHECK(error_of([&] {
            apply_rope(std::vector<std::int64_t>{3, bad}, cache, RopeStyle::kNeox, query);
          }) == ErrorKind::kValue);
    for (std::int64_t i = 0; i < 16; ++i) CHECK(query.at(i) == original.at(i));
  }
}

TEST_CASE("RoPE refuses odd or too large rotary dimensions and mismatching tensors") {
  CHECK(error_of([] { make_cos_sin_cache(8, 7, Dtype::kF32); }) == ErrorKind::kShape);
  const std::vector<std::int64_t> positions{1};
  const auto rotate = [&](const Tensor& cache, std::vector<std::int64_t> shape) {
    return error_of([&] {
      Tensor query(Dtype::kBF16, std::move(shape));
      apply_rope(positions, cache, RopeStyle::kGptJ, query);
    });
  };
  CHECK(rotate(Tensor(Dtype::kF32, {8, 7}), {1, 2, 8}) == ErrorKind::kShape);
  CHECK(rotate(Tensor(Dtype::kF32, {8, 10}), {1, 2, 8}) == ErrorKind::kShape);
  CHECK(rotate(Tensor(Dtype::kF32, {8, 8}), {2, 2, 8}) == ErrorKind::kShape);
  CHECK(rotate(Tensor(Dtype::kF32, {8, 8}), {1, 8}) == ErrorKind::kShape);
  CHECK(rotate(Tensor(Dtype::kF16, {8, 8}), {1, 2, 8}) == ErrorKind::kDtype);
  CHECK_FALSE(rotate(Tensor(Dtype::kBF16, {8, 8}), {1, 2, 8}));
}

}  // namespace attnbench::rope_test
