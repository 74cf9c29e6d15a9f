#include <doctest/doctest.h>

#include <cstdint>
#include <vector>

#include "core/tensor.h"
#include "ops/ops.h"

namespace attnbench::cpu::write_cache_test {
namespace {

/// One KV head, D 4, blocks of two slots, key blocks then value blocks.
struct Write {
  Tensor key{Dtype::kF32, {3, 4}};
  Tensor value{Dtype::kF32, {3, 4}};
  std::vector<std::uint8_t> cache = std::vector<std::uint8_t>(2 * 2 * 2 * 4 * 4, 0xEE);
  std::vector<float> scales = std::vector<float>(8, -1.0f);
  std::vector<attn::i64> slots{3, -1, 0};
  float k_scale = 0.5f;
  float v_scale = 2.0f;
  attn::CacheWriteParams params{};

  Write(Dtype cache_dtype, int quantise) {
    params.source_element = attn::Element::kF32;
    params.cache_element = static_cast<attn::Element>(cache_dtype);
    params.key = key.bytes();
    params.value = value.bytes();
    params.key_token_stride = params.value_token_stride = 4;
    params.key_cache = cache.data();
    params.value_cache = cache.data() + 16 * dtype_size(cache_dtype);
    params.block_stride = 8;
    params.slot_stride = params.head_stride = 4;
    params.slot_mapping = slots.data();
    params.num_slots = 3;
    params.block_size = 2;
    params.num_kv_heads = 1;
    params.head_size = params.v_head_size = 4;
    params.quantise = quantise;
    params.k_scale = &k_scale;
    params.v_scale = &v_scale;
    params.key_scales = scales.data();
    params.value_scales = scales.data() + 4;
    params.scale_block_stride = 2;
    params.scale_slot_stride = params.scale_head_stride = 1;
  }
};

std::vector<int> codes(const Write& write, int first) {
  std::vector<int> result;
  for (int d = 0; d < 4; ++d) {
    result.push_back(static_cast<std::int8_t>(write.cache[static_cast<std::size_t>(first + d)]));
  }
  return result;
}

}  // namespace

TEST_CASE("an unquantised write copies bits to the slot and skips negative slots") {
  Write write(Dtype::kF32, 0);
  for (int i = 0; i < 12; ++i) write.key.set(i, static_cast<float>(i + 1));
  make_cpu_ops(2)->write_cache(write.params);
  const auto* keys = reinterpret_cast<const float*>(write.cache.data());
  CHECK(keys[12] == 1.0f);  // token 0 in slot 3
  CHECK(keys[0] == 9.0f);   // token 2 in slot 0
  CHECK(write.cache[4 * 4] == 0xEE);
  CHECK(write.cache[8 * 4] == 0xEE);
}

TEST_CASE("an fp8 write divides by the scale of its side and saturates") {
  Write write(Dtype::kE4M3, 1);
  write.key.set(0, 0.5f);
  write.key.set(1, -1.0f);
  write.key.set(2, 1e6f);
  write.value.set(0, -4.0f);
  make_cpu_ops(1)->write_cache(write.params);
  CHECK(write.cache[12] == 0x38);  // 0.5 / 0.5 = 1
  CHECK(write.cache[13] == 0xC0);  // -1 / 0.5 = -2
  CHECK(write.cache[14] == 0x7E);
  CHECK(write.cache[16 + 12] == 0xC0);  // -4 / 2 = -2
}

TEST_CASE("an e5m2 write uses e5m2 codes") {
  Write write(Dtype::kE5M2, 1);
  write.key.set(0, 0.5f);
  make_cpu_ops(1)->write_cache(write.params);
  CHECK(write.cache[12] == 0x3C);
}

TEST_CASE("a per-token-head write gives the golden codes and scales under both roundings") {
  for (const bool truncate : {false, true}) {
    Write write(Dtype::kI8, 2);
    write.params.int8_truncate = truncate ? 1 : 0;
    const float golden[] = {1, -2, 0.5f, 0.25f, 0, 0, 0, 0, 3, -1.5f, 0.75f, 0.1f};
    for (int i = 0; i < 12; ++i) write.key.set(i, golden[i]);
    make_cpu_ops(1)->write_cache(write.params);
    CHECK(codes(write, 12) ==
          (truncate ? std::vector<int>{63, -127, 31, 15} : std::vector<int>{64, -127, 32, 16}));
    CHECK(codes(write, 0) ==
          (truncate ? std::vector<int>{127, -63, 31, 4} : std::vector<int>{127, -64, 32, 4}));
    CHECK(write.scales[3] == doctest::Approx(2.0 / 127).epsilon(1e-7));
    CHECK(write.scales[0] == doctest::Approx(3.0 / 127).epsilon(1e-7));
    CHECK(write.scales[1] == -1.0f);
    // An all-zero vector keeps the least scale.
    CHECK(write.scales[4 + 3] == 1e-6f);
    CHECK(codes(write, 16 + 12) == std::vector<int>{0, 0, 0, 0});
  }
}

}  // namespace attnbench::cpu::write_cache_test
