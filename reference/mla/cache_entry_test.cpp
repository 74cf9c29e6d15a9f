#include "reference/mla/cache_entry.h"

#include <cmath>
#include <cstring>

#include "reference/ops/test_support.h"
#include "reference/quantise/number_formats.h"

namespace attnbench {

using ops_test::error_of;
using ops_test::kNan;
using ops_test::noise;
using ops_test::tensor_of;

namespace {

float tile_scale(const std::byte* entry, int tile) {
  float scale = 0.0f;
  std::memcpy(&scale, entry + 512 + 4 * tile, 4);
  return scale;
}

Tensor poisoned_cache(std::int64_t num_blocks, std::int64_t block_size) {
  Tensor cache(Dtype::kU8, {num_blocks, block_size, kDsMlaEntryBytes});
  std::memset(cache.bytes(), 0xFF, cache.size_bytes());
  return cache;
}

bool is_poison(const std::byte* entry) {
  for (int i = 0; i < kDsMlaEntryBytes; ++i) {
    if (entry[i] != std::byte{0xFF}) return false;
  }
  return true;
}

}  // namespace

TEST_CASE("an entry is four tiles of codes, four scales and the raw rope part") {
  std::vector<float> values = noise(512);
  // Tiles of magnitudes that differ by far: a scale taken from another tile would show.
  for (std::size_t i = 0; i < values.size(); ++i) values[i] *= std::ldexp(1.0f, 8 * int(i / 128));
  const Tensor kv_c = tensor_of(values, {1, 512}, Dtype::kBF16);
  const Tensor k_pe = tensor_of(noise(64, 5), {1, 64}, Dtype::kBF16);
  std::vector<std::byte> entry(kDsMlaEntryBytes);
  write_ds_mla_entry(kv_c.data<std::uint16_t>(), k_pe.data<std::uint16_t>(), entry.data());
  for (int tile = 0; tile < 4; ++tile) {
    float largest = 0.0f;
    for (int i = 0; i < 128; ++i) largest = std::fmax(largest, std::fabs(kv_c.at(tile * 128 + i)));
    REQUIRE(tile_scale(entry.data(), tile) == largest / 448.0f);
    for (int i = tile * 128; i < tile * 128 + 128; ++i) {
      const std::uint8_t expected = rn_e4m3(kv_c.at(i) / (largest / 448.0f));
      REQUIRE(std::to_integer<std::uint8_t>(entry[static_cast<std::size_t>(i)]) == expected);
    }
  }
  CHECK(std::memcmp(entry.data() + 528, k_pe.bytes(), 128) == 0);

  Tensor back(Dtype::kBF16, {576});
  read_ds_mla_entry(entry.data(), back.data<std::uint16_t>());
  for (int i = 0; i < 512; ++i) {
    const float code =
        e4m3_value(std::to_integer<std::uint8_t>(entry[static_cast<std::size_t>(i)]));
    CHECK(back.at(i) == round_to(Dtype::kBF16, code * tile_scale(entry.data(), i / 128)));
    // e4m3 has 3 mantissa bits: half a step is 1/16 of the value, or of the tile's least normal.
    const float tile_max = 448.0f * tile_scale(entry.data(), i / 128);
    CHECK(std::fabs(back.at(i) - kv_c.at(i)) <= std::fabs(kv_c.at(i)) * 0.07f + tile_max * 1e-5f);
  }
  CHECK(std::memcmp(back.bytes() + 1024, k_pe.bytes(), 128) == 0);
}

TEST_CASE("an all-zero tile has the smallest normal scale and zero codes") {
  const Tensor zero(Dtype::kBF16, {576});
  std::vector<std::byte> entry(kDsMlaEntryBytes, std::byte{0xFF});
  const auto* codes = zero.data<std::uint16_t>();
  write_ds_mla_entry(codes, codes + 512, entry.data());
  for (std::size_t i = 0; i < 512; ++i) CHECK(entry[i] == std::byte{0});
  for (int tile = 0; tile < 4; ++tile) CHECK(tile_scale(entry.data(), tile) == 0x1p-126f);
  Tensor back(Dtype::kBF16, {576});
  read_ds_mla_entry(entry.data(), back.data<std::uint16_t>());
  for (int i = 0; i < 576; ++i) CHECK(back.at(i) == 0.0f);
}

TEST_CASE("tile elements are divided by the scale") {
  // 39 / (52 / 448) = 336 is a tie that goes to 320; times the reciprocal it is above 336.
  std::vector<float> values(576, 39.0f);
  values[0] = 52.0f;
  const Tensor x = tensor_of(values, {576}, Dtype::kBF16);
  std::vector<std::byte> entry(kDsMlaEntryBytes);
  write_ds_mla_entry(x.data<std::uint16_t>(), x.data<std::uint16_t>() + 512, entry.data());
  CHECK(e4m3_value(std::to_integer<std::uint8_t>(entry[1])) == 320.0f);
}

TEST_CASE("entries are written at their slots, padding is skipped") {
  const Tensor kv_c = tensor_of(noise(4 * 512), {4, 512}, Dtype::kBF16);
  const Tensor k_pe = tensor_of(noise(4 * 64), {4, 1, 64}, Dtype::kBF16);
  Tensor cache = poisoned_cache(2, 16);
  concat_and_cache_ds_mla(kv_c, k_pe, std::vector<std::int64_t>{17, -1, 3}, cache);
  int written = 0;
  for (int slot = 0; slot < 32; ++slot) {
    written += is_poison(cache.bytes() + slot * kDsMlaEntryBytes) ? 0 : 1;
  }
  CHECK(written == 2);
  std::vector<std::byte> expected(kDsMlaEntryBytes);
  write_ds_mla_entry(kv_c.data<std::uint16_t>() + 2 * 512, k_pe.data<std::uint16_t>() + 2 * 64,
                     expected.data());
  CHECK(std::memcmp(cache.bytes() + 3 * kDsMlaEntryBytes, expected.data(), 656) == 0);
}

TEST_CASE("gathering reads every request from position 0 through its own blocks") {
  const std::int64_t num_tokens = 40;
  const Tensor kv_c = tensor_of(noise(40 * 512), {num_tokens, 512}, Dtype::kBF16);
  const Tensor k_pe = tensor_of(noise(40 * 64), {num_tokens, 64}, Dtype::kBF16);
  // Requests of 20, 0 and 17 tokens in blocks {3, 1}, {} and {0, 4}; token t of the first is row t.
  const std::vector<std::int32_t> block_table{3, 1, -1, -1, 0, 4};
  std::vector<std::int64_t> slots;
  for (std::int64_t p = 0; p < 20; ++p) slots.push_back(p < 16 ? 48 + p : 16 + p - 16);
  for (std::int64_t p = 0; p < 17; ++p) slots.push_back(p < 16 ? p : 64 + p - 16);
  Tensor cache = poisoned_cache(5, 16);
  concat_and_cache_ds_mla(kv_c, k_pe, slots, cache);

  Tensor destination(Dtype::kBF16, {45, 576});
  for (std::int64_t i = 0; i < destination.num_elements(); ++i) destination.set(i, kNan);
  const std::vector<std::int32_t> seq_lens{20, 0, 17};
  const std::vector<std::int32_t> starts{2, 22, 25};
  gather_and_upconvert_ds_mla({&cache, block_table, 2, seq_lens, starts}, destination);
  for (std::int64_t row = 0; row < 45; ++row) {
    const bool first = row >= 2 && row < 22;
    const bool third = row >= 25 && row < 42;
    if (!first && !third) {
      CHECK(std::isnan(destination.at(row * 576)));
      continue;
    }
    const std::int64_t token = first ? row - 2 : 20 + row - 25;
    for (std::int64_t d = 0; d < 512; ++d) {
      const float x = kv_c.at(token * 512 + d);
      REQUIRE(std::fabs(destination.at(row * 576 + d) - x) <= std::fabs(x) * 0.07f + 1e-3f);
    }
    for (std::int64_t d = 0; d < 64; ++d) {
      REQUIRE(destination.at(row * 576 + 512 + d) == k_pe.at(token * 64 + d));
    }
  }
}

TEST_CASE("fp8_ds_mla refuses other widths, types and slots beyond the cache") {
  const auto write = [](Dtype dtype, std::int64_t latent, std::int64_t rope, std::int64_t bytes,
                        std::int64_t slot) {
    return error_of([&] {
      Tensor cache(Dtype::kU8, {1, 16, bytes});
      concat_and_cache_ds_mla(Tensor(dtype, {1, latent}), Tensor(dtype, {1, rope}),
                              std::vector<std::int64_t>{slot}, cache);
    });
  };
  CHECK_FALSE(write(Dtype::kBF16, 512, 64, 656, 15));
  CHECK(write(Dtype::kBF16, 256, 64, 656, 0) == ErrorKind::kShape);
  CHECK(write(Dtype::kBF16, 512, 32, 656, 0) == ErrorKind::kShape);
  CHECK(write(Dtype::kBF16, 512, 64, 576, 0) == ErrorKind::kShape);
  CHECK(write(Dtype::kF16, 512, 64, 656, 0) == ErrorKind::kDtype);
  CHECK(write(Dtype::kF32, 512, 64, 656, 0) == ErrorKind::kDtype);
  CHECK(write(Dtype::kBF16, 512, 64, 656, 16) == ErrorKind::kValue);
}

TEST_CASE("gathering refuses overlapping starts and block ids outside the cache") {
  const Tensor cache(Dtype::kU8, {2, 16, kDsMlaEntryBytes});
  Tensor destination(Dtype::kBF16, {20, 576});
  const std::vector<std::int32_t> seq_lens{4, 4};
  const auto gather = [&](std::vector<std::int32_t> table, std::vector<std::int32_t> starts) {
    return error_of([&] {
      gather_and_upconvert_ds_mla({&cache, table, 1, seq_lens, starts}, destination);
    });
  };
  CHECK_FALSE(gather({0, 1}, {0, 4}));
  CHECK(gather({0, 1}, {0, 3}) == ErrorKind::kValue);
  CHECK(gather({0, 1}, {4, 0}) == ErrorKind::kValue);
  CHECK(gather({0, 1}, {0, 17}) == ErrorKind::kValue);
  CHECK(gather({0, 2}, {0, 4}) == ErrorKind::kValue);
  CHECK(gather({0, 1}, {0}) == ErrorKind::kShape);
}

}  // namespace attnbench
