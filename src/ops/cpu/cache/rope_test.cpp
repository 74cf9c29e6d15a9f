#include <doctest/doctest.h>

#include <cmath>
#include <cstring>
#include <random>
#include <vector>

#include "core/tensor.h"
#include "ops/ops.h"

namespace attnbench::cpu::rope_test {
namespace {

constexpr int kMaxPosition = 50;

void fill(Tensor& tensor, std::uint64_t seed) {
  std::mt19937_64 random(seed);
  for (std::int64_t i = 0; i < tensor.num_elements(); ++i) {
    tensor.set(i, static_cast<float>(random() >> 40) * 0x1p-22f - 2.0f);
  }
}

Tensor cos_sin_cache(Dtype dtype, int rot) {
  Tensor cache(dtype, {kMaxPosition, rot});
  for (int p = 0; p < kMaxPosition; ++p) {
    for (int k = 0; k < rot / 2; ++k) {
      const double angle = p * std::pow(10000.0, -2.0 * k / rot);
      cache.set(p * rot + k, static_cast<float>(std::cos(angle)));
      cache.set(p * rot + rot / 2 + k, static_cast<float>(std::sin(angle)));
    }
  }
  return cache;
}

/// One head: pair k of its first rot elements turned by the angles of `position`.
void rotate_naively(const Tensor& cache, std::int64_t position, bool neox, std::int64_t first,
                    Tensor& x) {
  const int rot = static_cast<int>(cache.dim(1));
  const Tensor before = x;
  for (int k = 0; k < rot / 2; ++k) {
    const std::int64_t i = first + (neox ? k : 2 * k);
    const std::int64_t j = first + (neox ? k + rot / 2 : 2 * k + 1);
    const float cosine = cache.at(position * rot + k);
    const float sine = cache.at(position * rot + rot / 2 + k);
    x.set(i, before.at(i) * cosine - before.at(j) * sine);
    x.set(j, before.at(j) * cosine + before.at(i) * sine);
  }
}

bool same_bytes(const Tensor& a, const Tensor& b) {
  return std::memcmp(a.bytes(), b.bytes(), a.size_bytes()) == 0;
}

/// Query and key are parts of one row [T, (H + Hk) * D + 5], so neither is contiguous.
struct Rope {
  static constexpr int kTokens = 6;
  static constexpr int kHeads = 3;
  static constexpr int kKvHeads = 2;
  int head_size;
  int row;
  Tensor fused, cache;
  std::vector<attn::i64> positions{0, 49, 3, 3, 17, 1};
  attn::RopeParams params{};

  Rope(Dtype dtype, Dtype cache_dtype, int d, int rot, bool neox)
      : head_size(d),
        row((kHeads + kKvHeads) * d + 5),
        fused(dtype, {kTokens, row}),
        cache(cos_sin_cache(cache_dtype, rot)) {
    fill(fused, 5);
    params.element = static_cast<attn::Element>(dtype);
    params.cache_element = static_cast<attn::Element>(cache_dtype);
    params.positions = positions.data();
    params.cos_sin_cache = cache.bytes();
    params.query = fused.bytes();
    params.key = fused.bytes() + kHeads * d * static_cast<int>(dtype_size(dtype));
    params.query_token_stride = params.key_token_stride = row;
    params.query_head_stride = params.key_head_stride = d;
    params.num_tokens = kTokens;
    params.num_heads = kHeads;
    params.num_kv_heads = kKvHeads;
    params.rotary_dim = rot;
    params.is_neox = neox ? 1 : 0;
  }

  Tensor expected(int heads) const {
    Tensor result = fused;
    for (int t = 0; t < kTokens; ++t) {
      for (int h = 0; h < heads; ++h) {
        rotate_naively(cache, positions[static_cast<std::size_t>(t)], params.is_neox != 0,
                       std::int64_t{t} * row + h * head_size, result);
      }
    }
    return result;
  }
};

}  // namespace

TEST_CASE("rope turns the pairs of query and key of every dtype and leaves the rest alone") {
  for (const Dtype dtype : {Dtype::kF32, Dtype::kF16, Dtype::kBF16}) {
    for (const Dtype cache : {Dtype::kF32, dtype}) {
      for (const int rot : {2, 20, 64}) {
        for (const bool neox : {false, true}) {
          Rope rope(dtype, cache, 64, rot, neox);
          const Tensor expected = rope.expected(Rope::kHeads + Rope::kKvHeads);
          make_cpu_ops(2)->rope(rope.params);
          CHECK(same_bytes(rope.fused, expected));
        }
      }
    }
  }
}

TEST_CASE("rope by a quarter turn swaps the elements of a pair") {
  const std::vector<float> quarter{0, 0, 1, 1};  // cos, cos, sin, sin
  for (const bool neox : {false, true}) {
    std::vector<float> head{1, 2, 3, 4, 5};
    attn::i64 position = 0;
    attn::RopeParams params{};
    params.positions = &position;
    params.cos_sin_cache = quarter.data();
    params.query = head.data();
    params.num_tokens = params.num_heads = 1;
    params.rotary_dim = 4;
    params.is_neox = neox ? 1 : 0;
    make_cpu_ops(1)->rope(params);
    CHECK(head ==
          (neox ? std::vector<float>{-3, -4, 1, 2, 5} : std::vector<float>{-2, 1, -4, 3, 5}));
  }
}

TEST_CASE("rope without a key turns the query alone") {
  Rope rope(Dtype::kBF16, Dtype::kF32, 32, 32, true);
  const Tensor expected = rope.expected(Rope::kHeads);
  rope.params.key = nullptr;
  make_cpu_ops(2)->rope(rope.params);
  CHECK(same_bytes(rope.fused, expected));
}

TEST_CASE("rope of the MLA parts turns q_pe of every head and the one k_pe") {
  constexpr int kNope = 12;
  constexpr int kRot = 8;
  constexpr int kLatent = 16;
  for (const bool neox : {false, true}) {
    Tensor query(Dtype::kBF16, {3, 4, kNope + kRot});
    Tensor latent(Dtype::kBF16, {3, kLatent + kRot});
    fill(query, 1);
    fill(latent, 2);
    Tensor expected_query = query;
    Tensor expected_latent = latent;
    const Tensor cache = cos_sin_cache(Dtype::kBF16, kRot);
    const std::vector<attn::i64> positions{7, 0, 31};
    for (std::size_t t = 0; t < 3; ++t) {
      const auto token = static_cast<std::int64_t>(t);
      for (std::int64_t h = 0; h < 4; ++h) {
        rotate_naively(cache, positions[t], neox, (token * 4 + h) * (kNope + kRot) + kNope,
                       expected_query);
      }
      rotate_naively(cache, positions[t], neox, token * (kLatent + kRot) + kLatent,
                     expected_latent);
    }
    attn::RopeParams params{};
    params.element = params.cache_element = attn::Element::kBF16;
    params.positions = positions.data();
    params.cos_sin_cache = cache.bytes();
    params.query = query.bytes() + kNope * 2;
    params.query_token_stride = 4 * (kNope + kRot);
    params.query_head_stride = kNope + kRot;
    params.key = latent.bytes() + kLatent * 2;
    params.key_token_stride = kLatent + kRot;
    params.num_tokens = 3;
    params.num_heads = 4;
    params.num_kv_heads = 1;
    params.rotary_dim = kRot;
    params.is_neox = neox ? 1 : 0;
    // The entries hold the latent part as it was and the rotated k_pe; token 1 is not stored.
    Tensor entries(Dtype::kBF16, {4, kLatent + kRot});
    const std::vector<attn::i64> slots{2, -1, 0};
    attn::MlaCacheWriteParams write{};
    write.source_element = attn::Element::kBF16;
    write.kv_c = latent.bytes();
    write.k_pe = params.key;
    write.kv_c_token_stride = write.k_pe_token_stride = kLatent + kRot;
    write.cache = entries.bytes();
    write.block_stride = 2 * (kLatent + kRot);
    write.slot_stride = kLatent + kRot;
    write.slot_mapping = slots.data();
    write.num_slots = 3;
    write.block_size = 2;
    write.kv_lora_rank = kLatent;
    write.rope_head_dim = kRot;
    write.format = attn::MlaEntry::kCopy;
    make_cpu_ops(2)->rope_and_write_mla_cache(params, write);
    CHECK(same_bytes(query, expected_query));
    CHECK(same_bytes(latent, expected_latent));
    for (std::int64_t i = 0; i < kLatent + kRot; ++i) {
      CHECK(entries.at(2 * (kLatent + kRot) + i) == expected_latent.at(i));
      CHECK(entries.at(i) == expected_latent.at(2 * (kLatent + kRot) + i));
      CHECK(entries.at(kLatent + kRot + i) == 0.0f);
    }
  }
}

TEST_CASE("rope with cache write equals rope, then write, bit for bit") {
  for (const Dtype cache_dtype : {Dtype::kBF16, Dtype::kE4M3}) {
    Rope fused(Dtype::kBF16, Dtype::kBF16, 32, 16, true);
    Rope separate(Dtype::kBF16, Dtype::kBF16, 32, 16, true);
    Tensor value(Dtype::kBF16, {Rope::kTokens, Rope::kKvHeads, 32});
    fill(value, 9);
    const std::vector<attn::i64> slots{5, -1, 0, 7, -1, 2};
    const std::vector<float> k_scale{0.03f, 0.5f};
    const std::vector<float> v_scale{1.0f, 0.2f};
    const std::int64_t plane = 8 * Rope::kKvHeads * 32;
    Tensor fused_cache(cache_dtype, {2 * plane});
    Tensor separate_cache(cache_dtype, {2 * plane});
    const auto write_of = [&](const Rope& rope, Tensor& cache) {
      attn::CacheWriteParams write{};
      write.source_element = attn::Element::kBF16;
      write.cache_element = static_cast<attn::Element>(cache_dtype);
      write.key = rope.params.key;
      write.key_token_stride = rope.row;
      write.value = value.bytes();
      write.value_token_stride = Rope::kKvHeads * 32;
      write.key_cache = cache.bytes();
      write.value_cache = cache.bytes() + plane * static_cast<int>(dtype_size(cache_dtype));
      write.block_stride = 4 * Rope::kKvHeads * 32;
      write.slot_stride = Rope::kKvHeads * 32;
      write.head_stride = 32;
      write.slot_mapping = slots.data();
      write.num_slots = Rope::kTokens;
      write.block_size = 4;
      write.num_kv_heads = Rope::kKvHeads;
      write.head_size = write.v_head_size = 32;
      write.quantise = cache_dtype == Dtype::kE4M3 ? 1 : 0;
      write.k_scale = k_scale.data();
      write.v_scale = v_scale.data();
      return write;
    };
    const auto ops = make_cpu_ops(2);
    ops->rope_and_write_cache(fused.params, write_of(fused, fused_cache));
    const Tensor rotated = separate.expected(Rope::kHeads + Rope::kKvHeads);
    ops->rope(separate.params);
    ops->write_cache(write_of(separate, separate_cache));
    // Tokens with slot -1 are rotated too.
    CHECK(same_bytes(fused.fused, rotated));
    CHECK(same_bytes(fused.fused, separate.fused));
    CHECK(same_bytes(fused_cache, separate_cache));
    // Slot 7 holds token 3's key as it was rounded to bf16, divided by the scale of its head.
    for (int d = 0; d < 32; ++d) {
      const float key = rotated.at(3 * fused.row + (Rope::kHeads + 1) * 32 + d);
      const float stored = cache_dtype == Dtype::kE4M3 ? key / k_scale[1] : key;
      CHECK(fused_cache.at((7 * Rope::kKvHeads + 1) * 32 + d) == round_to(cache_dtype, stored));
    }
  }
}

}  // namespace attnbench::cpu::rope_test
