// What stands around the attention of MLA: weights, cache entries and the fp8 query.
#include <doctest/doctest.h>

#include <cstring>

#include "core/error.h"
#include "reference/mla/cache_entry.h"
#include "reference/mla/kv_b_proj.h"
#include "reference/mla/latent_query.h"
#include "reference/mla/mla_reference.h"
#include "reference/mla/naive_mla.h"

namespace attnbench::stored_test {
namespace {

Tensor random_tensor(Dtype dtype, std::vector<std::int64_t> shape, std::uint64_t seed,
                     float std = 1) {
  MlaRandom random(seed);
  Tensor tensor(dtype, std::move(shape));
  for (std::int64_t i = 0; i < tensor.num_elements(); ++i) tensor.set(i, std * random.normal());
  return tensor;
}

bool same_bytes(const Tensor& a, const Tensor& b) {
  return a.dtype() == b.dtype() && a.shape() == b.shape() &&
         std::memcmp(a.bytes(), b.bytes(), a.size_bytes()) == 0;
}

template <typename Action>
ErrorKind kind_of(const Action& action) {
  try {
    action();
  } catch (const Error& error) {
    return error.kind();
  }
  return ErrorKind::kUsage;
}

TEST_CASE("kv_b_proj holds of each head the rows of K, then those of V transposed") {
  Tensor w_uk(Dtype::kF32, {2, 1, 2});  // N 2, P 1, Lkv 2
  Tensor w_uv(Dtype::kF32, {2, 2, 2});  // V 2
  for (std::int64_t i = 0; i < 4; ++i) w_uk.set(i, static_cast<float>(i));
  for (std::int64_t i = 0; i < 8; ++i) w_uv.set(i, static_cast<float>(10 + i));
  const Tensor joined = join_kv_b_proj(w_uk, w_uv);
  const float expected[] = {0, 1, 10, 12, 11, 13, 2, 3, 14, 16, 15, 17};
  REQUIRE(joined.shape() == std::vector<std::int64_t>{6, 2});
  for (std::int64_t i = 0; i < 12; ++i) CHECK(joined.at(i) == expected[i]);
}

TEST_CASE("splitting what was joined gives the weights back, bit for bit") {
  const Tensor w_uk = random_tensor(Dtype::kBF16, {3, 5, 8}, 1);
  const Tensor w_uv = random_tensor(Dtype::kBF16, {3, 8, 4}, 2);
  const MlaWeights weights = split_kv_b_proj(join_kv_b_proj(w_uk, w_uv), 3, 8, 5, 4);
  CHECK(same_bytes(weights.w_uk_t, w_uk));
  CHECK(same_bytes(weights.w_uv, w_uv));
  CHECK(kind_of([&] {
          join_kv_b_proj(w_uk, random_tensor(Dtype::kBF16, {3, 7, 4}, 2));
        }) == ErrorKind::kShape);
  CHECK(kind_of([&] { join_kv_b_proj(w_uk, convert(w_uv, Dtype::kF16)); }) == ErrorKind::kDtype);
}

TEST_CASE("an unquantised cache holds the bits of both parts") {
  const Tensor kv_c = random_tensor(Dtype::kBF16, {3, 8}, 1);
  const Tensor k_pe = random_tensor(Dtype::kBF16, {3, 2}, 2);
  for (const KvCacheDtype dtype : {KvCacheDtype::kAuto, KvCacheDtype::kBFloat16}) {
    const StoredMlaCache stored = store_mla_cache(kv_c, k_pe, dtype, 7);
    REQUIRE(stored.codes.shape() == std::vector<std::int64_t>{3, 10});
    CHECK(stored.codes.dtype() == Dtype::kBF16);
    for (std::int64_t row = 0; row < 3; ++row) {
      for (std::int64_t i = 0; i < 8; ++i) {
        CHECK(stored.codes.at(row * 10 + i) == kv_c.at(row * 8 + i));
        CHECK(stored.kv_c_dequantized.at(row * 8 + i) == kv_c.at(row * 8 + i));
      }
      for (std::int64_t i = 0; i < 2; ++i) {
        CHECK(stored.codes.at(row * 10 + 8 + i) == k_pe.at(row * 2 + i));
        CHECK(stored.k_pe_dequantized.at(row * 2 + i) == k_pe.at(row * 2 + i));
      }
    }
  }
  CHECK(kind_of([&] { store_mla_cache(kv_c, k_pe, KvCacheDtype::kFloat16, 1); }) ==
        ErrorKind::kDtype);
}

TEST_CASE("an fp8 cache divides by its one scale, saturates and reads back as code times scale") {
  Tensor kv_c(Dtype::kF32, {1, 4});
  Tensor k_pe(Dtype::kF32, {1, 2});
  const float values[] = {0.5f, -1.0f, 1000.0f, 0.0f};
  for (std::int64_t i = 0; i < 4; ++i) kv_c.set(i, values[i]);
  k_pe.set(0, std::numeric_limits<float>::quiet_NaN());
  k_pe.set(1, -224.0f);
  const StoredMlaCache stored = store_mla_cache(kv_c, k_pe, KvCacheDtype::kFp8, 0.5f);
  // 1.0 = 0x38, -2.0 = 0xC0, saturated 448 = 0x7E, -448 = 0xFE (semantics §16).
  const std::uint8_t codes[] = {0x38, 0xC0, 0x7E, 0x00, 0x7F, 0xFE};
  REQUIRE(stored.codes.shape() == std::vector<std::int64_t>{1, 6});
  for (std::size_t i = 0; i < 6; ++i) CHECK(stored.codes.data<std::uint8_t>()[i] == codes[i]);
  CHECK(stored.kv_c_dequantized.at(2) == 224);
  CHECK(stored.k_pe_dequantized.at(1) == -224);
  CHECK(std::isnan(stored.k_pe_dequantized.at(0)));
  CHECK(kind_of([&] { store_mla_cache(kv_c, k_pe, KvCacheDtype::kFp8, 0); }) == ErrorKind::kValue);
}

TEST_CASE("an fp8 cache divides where multiplying by the reciprocal gives another code") {
  // Found by search over scales: the quotient is a tie, the product with the reciprocal is not.
  bool found = false;
  for (float scale = 0.01f; scale < 1 && !found; scale += 0.001f) {
    for (const float tie : {1.0625f, 1.1875f, 1.3125f, 1.4375f}) {
      Tensor kv_c(Dtype::kF32, {1, 1});
      kv_c.set(0, tie * scale);
      const float quotient = kv_c.at(0) / scale;
      const float product = kv_c.at(0) * (1 / scale);
      if (round_to(Dtype::kE4M3, quotient) == round_to(Dtype::kE4M3, product)) continue;
      const StoredMlaCache stored = store_mla_cache(kv_c, kv_c, KvCacheDtype::kFp8E4M3, scale);
      CHECK(stored.codes.at(0) == round_to(Dtype::kE4M3, quotient));
      found = true;
    }
  }
  CHECK(found);
}

TEST_CASE("an fp8_ds_mla cache has 656-byte entries and reads back as bf16 near the input") {
  const Tensor kv_c = random_tensor(Dtype::kBF16, {5, 512}, 1);
  const Tensor k_pe = random_tensor(Dtype::kBF16, {5, 64}, 2);
  const StoredMlaCache stored = store_mla_cache(kv_c, k_pe, KvCacheDtype::kFp8DsMla, -1);
  CHECK(stored.codes.shape() == std::vector<std::int64_t>{5, 656});
  for (std::int64_t i = 0; i < kv_c.num_elements(); ++i) {
    const float value = stored.kv_c_dequantized.at(i);
    CHECK(value == round_to(Dtype::kBF16, value));
    CHECK(std::abs(value - kv_c.at(i)) <= std::abs(kv_c.at(i)) * 0.07f + 2e-4f);
  }
  for (std::int64_t i = 0; i < k_pe.num_elements(); ++i) {
    CHECK(stored.k_pe_dequantized.at(i) == k_pe.at(i));
  }
  CHECK(kind_of([&] {
          store_mla_cache(convert(kv_c, Dtype::kF16), convert(k_pe, Dtype::kF16),
                          KvCacheDtype::kFp8DsMla, 1);
        }) == ErrorKind::kDtype);
  CHECK(kind_of([&] { store_mla_cache(k_pe, k_pe, KvCacheDtype::kFp8DsMla, 1); }) ==
        ErrorKind::kShape);
}

TEST_CASE("cache types that MLA has no entries for are refused") {
  const Tensor part = random_tensor(Dtype::kBF16, {2, 8}, 1);
  for (const KvCacheDtype dtype :
       {KvCacheDtype::kFp8E5M2, KvCacheDtype::kInt8PerTokenHead, KvCacheDtype::kFp8PerTokenHead}) {
    CHECK(kind_of([&] { store_mla_cache(part, part, dtype, 1); }) == ErrorKind::kConfig);
  }
}

TEST_CASE("the latent query is summed in f32 in ascending order and rounded once") {
  Tensor query(Dtype::kF32, {1, 1, 4});
  Tensor w_uk(Dtype::kF32, {1, 3, 1});
  // 2^24 + 1 - 2^24 is 0 in this order of f32 sums and 1 in any that adds the 1 last.
  const float weights[] = {16777216.0f, 1.0f, -16777216.0f};
  for (std::int64_t i = 0; i < 3; ++i) {
    query.set(i, 1);
    w_uk.set(i, weights[i]);
  }
  CHECK(project_mla_query(query, w_uk, 1).at(0) == 0);
  // Rounded to the query's dtype: 1 + 2^-9 is 1 in bf16.
  query = Tensor(Dtype::kBF16, {1, 1, 4});
  for (std::int64_t i = 0; i < 3; ++i) query.set(i, i < 2 ? 1.0f : 0.0f);
  w_uk.set(0, 1);
  w_uk.set(1, 0.001953125f);
  const Tensor projected = project_mla_query(query, w_uk, 1);
  CHECK(projected.dtype() == Dtype::kBF16);
  CHECK(projected.at(0) == 1);
}

TEST_CASE("the projected query is close to the exact product") {
  const Tensor query = random_tensor(Dtype::kF32, {4, 3, 11}, 1);
  const Tensor w_uk = random_tensor(Dtype::kF32, {3, 8, 16}, 2);
  const Tensor projected = project_mla_query(query, w_uk, 3);
  REQUIRE(projected.shape() == std::vector<std::int64_t>{3, 3, 16});
  for (std::int64_t row = 0; row < 9; ++row) {
    for (std::int64_t l = 0; l < 16; ++l) {
      double exact = 0;
      for (std::int64_t p = 0; p < 8; ++p) {
        exact += static_cast<double>(query.at(row * 11 + p)) * w_uk.at((row % 3 * 8 + p) * 16 + l);
      }
      CHECK(std::abs(projected.at(row * 16 + l) - exact) < 1e-5);
    }
  }
}

TEST_CASE("the quantised query is projection and rope times the reciprocal scale in e4m3") {
  const Tensor query = random_tensor(Dtype::kBF16, {3, 2, 6}, 1);
  const Tensor w_uk = random_tensor(Dtype::kBF16, {2, 4, 8}, 2);
  const float scale = 0.03f;
  const MlaLatentQuery latent = quantise_latent_query(query, w_uk, 3, scale);
  const Tensor projected = project_mla_query(query, w_uk, 3);
  REQUIRE(latent.codes.shape() == std::vector<std::int64_t>{3, 2, 10});
  CHECK(latent.dequantized.shape() == latent.codes.shape());
  for (std::int64_t row = 0; row < 6; ++row) {
    for (std::int64_t i = 0; i < 10; ++i) {
      const float value = i < 8 ? projected.at(row * 8 + i) : query.at(row * 6 + 4 + i - 8);
      const float code = round_to(Dtype::kE4M3, value * (1.0f / scale));
      CHECK(latent.codes.at(row * 10 + i) == code);
      CHECK(latent.dequantized.at(row * 10 + i) == code * scale);
    }
  }
  CHECK(kind_of([&] { quantise_latent_query(query, w_uk, 4, scale); }) == ErrorKind::kShape);
  CHECK(kind_of([&] { quantise_latent_query(query, w_uk, 3, -1); }) == ErrorKind::kValue);
}

TEST_CASE("fp8 decode with a quantised query stays near the unquantised attention") {
  for (std::uint64_t seed = 0; seed < 20; ++seed) {
    CAPTURE(seed);
    NaiveMlaCase c = random_mla_case(seed, 40, Dtype::kBF16);
    c.softmax_scale = 0.1;
    std::vector<std::int32_t> rows = c.all_rows();
    rows.resize(static_cast<std::size_t>(c.num_decode_tokens));
    const auto exact = mla_reference(c.inputs(), rows);
    const StoredMlaCache stored = store_mla_cache(c.kv_c, c.k_pe, KvCacheDtype::kFp8, 0.02f);
    const MlaLatentQuery latent =
        quantise_latent_query(c.query, c.w_uk, c.num_decode_tokens, 0.02f);
    MlaReferenceInputs inputs = c.inputs();
    inputs.kv_c = &stored.kv_c_dequantized;
    inputs.k_pe = &stored.k_pe_dequantized;
    inputs.latent_query = &latent.dequantized;
    const auto quantised = mla_reference(inputs, rows);
    for (std::size_t i = 0; i < exact->output.size(); ++i) {
      CHECK(std::abs(quantised->output[i] - exact->output[i]) < 0.5);
    }
  }
}

}  // namespace
}  // namespace attnbench::stored_test
