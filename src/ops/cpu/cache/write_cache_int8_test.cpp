#include <doctest/doctest.h>

#include <cstdint>
#include <cstring>
#include <vector>

#include "ops/ops.h"

namespace attnbench::cpu {
namespace {

constexpr int kTokens = 4;
constexpr int kHeads = 2;
constexpr int kSize = 8;
constexpr int kBlocks = 3;
constexpr int kBlockSize = 4;
constexpr int kPlane = kBlocks * kHeads * kBlockSize * kSize;  // elements

/// A cache [P, NB, Hk, bs, D] of bytes; level 2 has the 16-bit V in planes 1 and 2.
struct Write {
  int level;
  std::vector<signed char> key;
  std::vector<std::uint8_t> value;
  std::vector<float> key_scale;
  std::vector<std::uint8_t> cache;
  std::vector<float> scale_cache = std::vector<float>(kBlocks * kHeads * kBlockSize, -1.0f);
  std::vector<attn::i64> slots{6, -1, 0, 11};
  attn::Int8CacheWriteParams params{};

  explicit Write(int the_level) : level(the_level) {
    const int value_size = level == 2 ? 2 : 1;
    for (int i = 0; i < kTokens * kHeads * kSize; ++i) {
      key.push_back(static_cast<signed char>(i));
      for (int b = 0; b < value_size; ++b) {
        value.push_back(static_cast<std::uint8_t>(200 - 2 * i - b));
      }
    }
    for (int i = 0; i < kTokens * kHeads; ++i) key_scale.push_back(0.5f + static_cast<float>(i));
    cache.assign(static_cast<std::size_t>(kPlane * (level == 2 ? 3 : 2)), 0xEE);
    params.key = key.data();
    params.key_token_stride = params.value_token_stride = kHeads * kSize;
    params.key_head_stride = params.value_head_stride = kSize;
    params.key_scale = key_scale.data();
    params.key_scale_token_stride = kHeads;
    params.key_scale_head_stride = 1;
    params.value_element = level == 2 ? attn::Element::kBF16 : attn::Element::kI8;
    params.value = value.data();
    params.key_cache = reinterpret_cast<signed char*>(cache.data());
    params.value_cache = cache.data() + kPlane;
    params.block_stride = kHeads * kBlockSize * kSize;
    params.head_stride = kBlockSize * kSize;
    params.slot_stride = kSize;
    params.key_scale_cache = scale_cache.data();
    params.scale_block_stride = kHeads * kBlockSize;
    params.scale_head_stride = kBlockSize;
    params.scale_slot_stride = 1;
    params.num_tokens = kTokens;
    params.block_size = kBlockSize;
    params.num_kv_heads = kHeads;
    params.head_size = kSize;
    params.slot_mapping = slots.data();
  }

  /// What the cache and its scales must hold, element by element from the definition.
  void check_contents() const {
    std::vector<std::uint8_t> expected(cache.size(), 0xEE);
    std::vector<float> expected_scales(scale_cache.size(), -1.0f);
    const std::size_t value_size = level == 2 ? 2 : 1;
    for (std::size_t t = 0; t < kTokens; ++t) {
      if (slots[t] < 0) continue;
      const auto block = static_cast<std::size_t>(slots[t] / kBlockSize);
      const auto offset = static_cast<std::size_t>(slots[t] % kBlockSize);
      for (std::size_t h = 0; h < kHeads; ++h) {
        expected_scales[(block * kHeads + h) * kBlockSize + offset] = key_scale[t * kHeads + h];
        for (std::size_t d = 0; d < kSize; ++d) {
          const std::size_t element = ((block * kHeads + h) * kBlockSize + offset) * kSize + d;
          const std::size_t source = (t * kHeads + h) * kSize + d;
          expected[element] = static_cast<std::uint8_t>(key[source]);
          std::memcpy(&expected[kPlane + element * value_size], &value[source * value_size],
                      value_size);
        }
      }
    }
    CHECK(cache == expected);
    CHECK(scale_cache == expected_scales);
  }
};

}  // namespace

TEST_CASE("an int8 write copies codes and key scales to their slots and nothing else") {
  Write write(1);
  make_cpu_ops(2)->write_cache_int8(write.params);
  write.check_contents();
}

TEST_CASE("a level 2 write puts the 16-bit values into planes 1 and 2 as one cache") {
  Write write(2);
  make_cpu_ops(2)->write_cache_int8(write.params);
  write.check_contents();
  // Block 2 lies past the end of plane 1: 16-bit offset ((2*2+0)*4+3)*8 of slot 11, head 0.
  const std::size_t byte = kPlane + 2 * (((2 * 2 + 0) * 4 + 3) * 8);
  CHECK(byte >= 2 * kPlane);
  CHECK(write.cache[byte] == write.value[3 * kHeads * kSize * 2]);
}

TEST_CASE("an int8 write reads transposed key scales") {
  Write write(1);
  const std::vector<float> rows = write.key_scale;
  std::vector<float> transposed(rows.size());
  for (std::size_t t = 0; t < kTokens; ++t) {
    for (std::size_t h = 0; h < kHeads; ++h) transposed[h * kTokens + t] = rows[t * kHeads + h];
  }
  write.params.key_scale = transposed.data();
  write.params.key_scale_token_stride = 1;
  write.params.key_scale_head_stride = kTokens;
  make_cpu_ops(1)->write_cache_int8(write.params);
  write.check_contents();
}

TEST_CASE("a write without slot mapping stores at the end of each request") {
  for (const int level : {1, 2}) {
    Write write(level);
    // Tokens 0..2 of request 0 at positions 2..4 of blocks 1, 2; request 1 is padding; token 3 of
    // request 2 at position 0 of block 0.
    const std::vector<int> block_table{1, 2, -5, -5, 0, -5};
    const std::vector<int> query_start_loc{0, 3, 3, 4};
    const std::vector<int> seq_lens{5, 0, 1};
    write.slots = {6, 7, 8, 0};
    write.params.slot_mapping = nullptr;
    write.params.block_table = block_table.data();
    write.params.block_table_stride = 2;
    write.params.query_start_loc = query_start_loc.data();
    write.params.seq_lens = seq_lens.data();
    write.params.num_requests = 3;
    make_cpu_ops(2)->write_cache_int8(write.params);
    write.check_contents();
  }
}

TEST_CASE("a request with seq_len zero saves nothing even when it has a token") {
  Write write(1);
  const std::vector<int> block_table{1}, query_start_loc{0, 1}, seq_lens{0};
  write.slots = {-1, -1, -1, -1};
  write.params.slot_mapping = nullptr;
  write.params.block_table = block_table.data();
  write.params.block_table_stride = 1;
  write.params.query_start_loc = query_start_loc.data();
  write.params.seq_lens = seq_lens.data();
  write.params.num_requests = 1;
  make_cpu_ops(1)->write_cache_int8(write.params);
  write.check_contents();
}

}  // namespace attnbench::cpu
