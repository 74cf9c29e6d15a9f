// The paged cache of int8 attention: planes, key scales, poison, and the check after a step.
#include <doctest/doctest.h>

#include <cmath>
#include <cstring>

#include "inputs/cache/check_cache.h"
#include "inputs/cache/paged_cache.h"
#include "inputs/cache/stored_kv.h"
#include "inputs/make_inputs.h"
#include "inputs/test_problem.h"
#include "metadata/mask/kernel_rules_testing.h"

namespace attnbench {
namespace {

constexpr std::int64_t kSlots = 16;
constexpr std::int64_t kHeads = 2;
constexpr std::int64_t kWidth = 8;

struct Int8Cache {
  explicit Int8Cache(int level) {
    problem = small_problem();
    problem.kv_cache.int8_level = level;
    inputs = make_inputs(problem);
    stored = store_kv(inputs, resolve_store_rule(problem, kFlashIxRules));
    cache = make_paged_cache(problem, inputs, stored, CacheLayoutKind::kIx);
  }

  std::int64_t block_of(std::int64_t request, std::int64_t position) const {
    return cache.block_table
        .data<std::int32_t>()[request * cache.block_table.dim(1) + position / kSlots];
  }
  /// Cell ((b * Hk + h) * bs + s) of semantics §2.2.
  std::int64_t cell(std::int64_t request, std::int64_t position, std::int64_t head) const {
    return (block_of(request, position) * kHeads + head) * kSlots + position % kSlots;
  }
  /// Bytes of V of a cell: 8-bit in plane 1, or 16-bit from the start of plane 1 on.
  std::int64_t value_byte(std::int64_t at) const {
    const std::int64_t plane = problem.kv_cache.num_blocks * kHeads * kSlots * kWidth;
    return plane + at * kWidth * (problem.kv_cache.int8_level == 1 ? 1 : 2);
  }
  std::int64_t value_bytes() const { return kWidth * (problem.kv_cache.int8_level == 1 ? 1 : 2); }

  /// What a correct write leaves, by the definition of the layout.
  void write_all() {
    after = cache.data;
    scales = cache.key_scale_cache;
    std::int64_t row = 0;
    for (std::int64_t b = 0; b < problem.num_requests(); ++b) {
      for (std::int64_t p = 0; p < problem.batch[static_cast<std::size_t>(b)].seq_len; ++p, ++row) {
        for (std::int64_t head = 0; head < kHeads; ++head) {
          const std::int64_t source = row * kHeads + head;
          const std::int64_t at = cell(b, p, head);
          std::memcpy(after.bytes() + at * kWidth, stored.key_codes.bytes() + source * kWidth,
                      kWidth);
          std::memcpy(after.bytes() + value_byte(at),
                      stored.value_codes.bytes() + source * value_bytes(),
                      static_cast<std::size_t>(value_bytes()));
          scales.data<float>()[at] = stored.key_scales.data<float>()[source];
        }
      }
    }
  }
  std::string check() const { return check_cache(problem, stored, cache, after, &scales); }

  Problem problem;
  AttentionInputs inputs;
  StoredKv stored;
  PagedCache cache;
  Tensor after;
  Tensor scales;
};

bool contains(const std::string& text, const char* part) {
  return text.find(part) != std::string::npos;
}

}  // namespace

TEST_CASE("the cache has two planes at level 1, three at level 2, and scales for every slot") {
  for (const int level : {1, 2}) {
    const Int8Cache c(level);
    CHECK(c.cache.data.dtype() == Dtype::kI8);
    CHECK(c.cache.data.shape() == std::vector<std::int64_t>{level + 1, 24, 2, 16, 8});
    CHECK(c.cache.key_scale_cache.shape() == std::vector<std::int64_t>{24, 2, 16});
  }
}

TEST_CASE("context is stored, slots without a key have NaN scales, unused 16-bit values are NaN") {
  for (const int level : {1, 2}) {
    Int8Cache c(level);
    // Position 5 of request 0 is context; position 32 is its new token.
    const std::int64_t old_cell = c.cell(0, 5, 1);
    const std::int64_t new_cell = c.cell(0, 32, 1);
    CHECK(c.cache.key_scale_cache.at(old_cell) == c.stored.key_scales.at(5 * kHeads + 1));
    CHECK(std::isnan(c.cache.key_scale_cache.at(new_cell)));
    const Dtype dtype = level == 1 ? Dtype::kI8 : Dtype::kBF16;
    const float old_value = load_float(dtype, c.cache.data.bytes() + c.value_byte(old_cell), 3);
    CHECK(old_value == c.stored.value_codes.at((5 * kHeads + 1) * kWidth + 3));
    if (level == 2) {
      CHECK(std::isnan(load_float(dtype, c.cache.data.bytes() + c.value_byte(new_cell), 3)));
    }
  }
}

TEST_CASE("a correct int8 write passes the check, none does not") {
  for (const int level : {1, 2}) {
    Int8Cache c(level);
    c.write_all();
    CHECK(c.check() == "");
    CHECK(check_cache(c.problem, c.stored, c.cache, c.cache.data, &c.scales) != "");
    CHECK(check_cache(c.problem, c.stored, c.cache, c.after, &c.cache.key_scale_cache) != "");
  }
}

TEST_CASE("every changed byte of the int8 planes and of the key scales is found") {
  for (const int level : {1, 2}) {
    Int8Cache c(level);
    c.write_all();
    for (std::size_t i = 0; i < c.after.size_bytes(); i += 61) {
      c.after.bytes()[i] ^= std::byte{0x20};
      CHECK_MESSAGE(c.check() != "", i);
      c.after.bytes()[i] ^= std::byte{0x20};
    }
    for (std::size_t i = 0; i < c.scales.size_bytes(); i += 7) {
      c.scales.bytes()[i] ^= std::byte{0x01};
      CHECK_MESSAGE(c.check() != "", i);
      c.scales.bytes()[i] ^= std::byte{0x01};
    }
  }
}

TEST_CASE("the check names the place of a wrong value and of a wrong key scale") {
  Int8Cache c(2);
  c.write_all();
  const std::int64_t at = c.cell(1, 45, 1);
  c.after.bytes()[c.value_byte(at) + 2 * 5] ^= std::byte{1};
  CHECK(contains(c.check(), "request 1, position 45, V, head 1, element 5"));
  c.after.bytes()[c.value_byte(at) + 2 * 5] ^= std::byte{1};
  c.scales.data<float>()[at] *= 2;
  CHECK(contains(c.check(), "request 1, position 45, K scale, head 1"));
}

}  // namespace attnbench
