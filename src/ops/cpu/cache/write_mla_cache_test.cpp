#include <doctest/doctest.h>

#include <cmath>
#include <cstdint>
#include <cstring>
#include <limits>
#include <vector>

#include "core/error.h"
#include "ops/cpu/tensor_testing.h"
#include "ops/ops.h"

namespace attnbench::cpu {
namespace {

/// Three tokens into a cache of two blocks of two slots, [NB, bs, entry].
struct MlaWrite {
  Tensor kv_c, k_pe;
  std::vector<std::uint8_t> cache;
  std::vector<attn::i64> slots{3, -1, 0};
  float k_scale = 0.5f;
  attn::MlaCacheWriteParams params{};

  MlaWrite(attn::MlaEntry format, Dtype dtype, int latent, int rope, int entry_bytes)
      : kv_c(random_tensor(dtype, {3, latent}, 1)),
        k_pe(random_tensor(dtype, {3, rope}, 2)),
        cache(static_cast<std::size_t>(4 * entry_bytes), 0xEE) {
    const std::int64_t entry =
        format == attn::MlaEntry::kCopy ? latent + rope : std::int64_t{entry_bytes};
    params = {format,
              element_of(dtype),
              kv_c.bytes(),
              latent,
              k_pe.bytes(),
              rope,
              cache.data(),
              2 * entry,
              entry,
              slots.data(),
              3,
              2,
              latent,
              rope,
              &k_scale};
    entry_bytes_ = entry_bytes;
  }
  const std::uint8_t* entry(int slot) const { return cache.data() + slot * entry_bytes_; }
  bool untouched(int slot) const {
    for (int i = 0; i < entry_bytes_; ++i) {
      if (entry(slot)[i] != 0xEE) return false;
    }
    return true;
  }

 private:
  int entry_bytes_ = 0;
};

MlaWrite ds_mla_write() {
  return {attn::MlaEntry::kDsMla, Dtype::kBF16, 512, 64, attn::kDsMlaEntryBytes};
}

}  // namespace

TEST_CASE("an unquantised MLA write puts kv_c and k_pe side by side and skips negative slots") {
  MlaWrite write(attn::MlaEntry::kCopy, Dtype::kF16, 6, 2, 16);
  make_cpu_ops(2)->write_mla_cache(write.params);
  for (const auto& [token, slot] : {std::pair{0, 3}, std::pair{2, 0}}) {
    CHECK(std::memcmp(write.entry(slot), write.kv_c.bytes() + token * 12, 12) == 0);
    CHECK(std::memcmp(write.entry(slot) + 12, write.k_pe.bytes() + token * 4, 4) == 0);
  }
  CHECK(write.untouched(1));
  CHECK(write.untouched(2));
}

TEST_CASE("an fp8 MLA write divides both parts by the one scale and saturates") {
  MlaWrite write(attn::MlaEntry::kE4M3, Dtype::kF32, 3, 2, 5);
  const float latent[] = {0.5f, 1e6f, std::nanf("")};
  for (int i = 0; i < 3; ++i) write.kv_c.set(i, latent[i]);
  write.k_pe.set(0, -1.0f);
  write.k_pe.set(1, -std::numeric_limits<float>::quiet_NaN());
  make_cpu_ops(1)->write_mla_cache(write.params);
  const std::uint8_t expected[] = {0x38, 0x7E, 0x7F, 0xC0, 0x7F};
  CHECK(std::memcmp(write.entry(3), expected, 5) == 0);
  CHECK(write.untouched(1));
}

TEST_CASE("an fp8 MLA write divides where the product with the reciprocal would round otherwise") {
  MlaWrite write(attn::MlaEntry::kE4M3, Dtype::kF32, 17, 1, 18);
  int telling = 0;
  for (int step = 0; step < 400; ++step) {
    // The tie between codes 1.0 and 1.125, seen through the scale, and the floats around it.
    write.k_scale = 0.011f + 0.003f * static_cast<float>(step);
    float x = 1.0625f * write.k_scale;
    for (int i = 0; i < 8; ++i) x = std::nextafterf(x, 0.0f);
    for (int i = 0; i < 17; ++i, x = std::nextafterf(x, 9.0f)) write.kv_c.set(i, x);
    make_cpu_ops(1)->write_mla_cache(write.params);
    for (int i = 0; i < 17; ++i) {
      const float quotient = write.kv_c.at(i) / write.k_scale;
      const float product = write.kv_c.at(i) * (1.0f / write.k_scale);
      CHECK(write.entry(3)[i] == (quotient > 1.0625f ? 0x39 : 0x38));
      telling += (quotient > 1.0625f) != (product > 1.0625f) ? 1 : 0;
    }
  }
  CHECK(telling > 0);
}

TEST_CASE("a fp8_ds_mla entry has four scaled tiles, their scales and the untouched rope part") {
  MlaWrite write = ds_mla_write();
  for (int i = 0; i < 512; ++i) write.kv_c.set(i, i < 128 ? 0.0f : 1.0f);
  write.kv_c.set(130, -896.0f);  // tile 1: scale 2
  write.kv_c.set(300, 448.0f);   // tile 2: scale 1
  write.kv_c.set(400, 224.0f);   // tile 3: scale 0.5
  make_cpu_ops(1)->write_mla_cache(write.params);
  const std::uint8_t* entry = write.entry(3);
  float scales[4];
  std::memcpy(scales, entry + 512, sizeof(scales));
  CHECK(scales[0] == 1.17549435e-38f);  // all zero
  CHECK(scales[1] == 2.0f);
  CHECK(scales[2] == 1.0f);
  CHECK(scales[3] == 0.5f);
  CHECK(entry[5] == 0x00);
  CHECK(entry[128] == 0x30);  // 1 / 2
  CHECK(entry[130] == 0xFE);  // -448
  CHECK(entry[256] == 0x38);  // 1
  CHECK(entry[384] == 0x40);  // 1 / 0.5
  CHECK(std::memcmp(entry + 528, write.k_pe.bytes(), 128) == 0);
  CHECK(write.untouched(1));
  CHECK(write.untouched(2));
}

TEST_CASE("fp8_ds_mla refuses other extents and element types by name") {
  const auto ops = make_cpu_ops(1);
  MlaWrite narrow(attn::MlaEntry::kDsMla, Dtype::kBF16, 256, 64, 656);
  CHECK_THROWS_AS(ops->write_mla_cache(narrow.params), Error);
  MlaWrite half(attn::MlaEntry::kDsMla, Dtype::kF16, 512, 64, 656);
  CHECK_THROWS_WITH_AS(ops->write_mla_cache(half.params),
                       "fp8_ds_mla cache: expected bfloat16 input, got float16", Error);
}

TEST_CASE("a write of no tokens leaves the cache alone") {
  MlaWrite write(attn::MlaEntry::kCopy, Dtype::kBF16, 4, 4, 16);
  write.params.num_slots = 0;
  make_cpu_ops(2)->write_mla_cache(write.params);
  for (int slot = 0; slot < 4; ++slot) CHECK(write.untouched(slot));
}

}  // namespace attnbench::cpu
