#include <doctest/doctest.h>

#include <cmath>
#include <cstring>
#include <initializer_list>
#include <limits>
#include <random>

#include "ops/cpu/attention/int8_attention_testing.h"
#include "ops/ops.h"

namespace attnbench::cpu::int8_attention_test {
namespace {

double tolerance_of(Dtype output) {
  if (output == Dtype::kBF16) return 8e-3;
  if (output == Dtype::kF16) return 1e-3;
  return 2e-5;
}

void run_splits(const Int8Setup& setup, int num_splits) {
  const auto ops = make_cpu_ops(2);
  const auto rows = static_cast<std::size_t>(num_splits * setup.num_tokens) *
                    static_cast<std::size_t>(setup.params.num_heads);
  std::vector<float> output(rows * static_cast<std::size_t>(setup.params.v_head_size), NAN);
  std::vector<float> lse(rows, NAN);
  const attn::SplitParams split{num_splits, setup.num_tokens, output.data(), lse.data()};
  ops->attend_splits(setup.params, split);
  ops->combine_splits(setup.params, split);
}

void expect_attend(const Int8Case& c) {
  Int8Setup setup(c);
  make_cpu_ops(2)->attend(setup.params);
  INFO(c.describe());
  CHECK(setup.difference(tolerance_of(c.output_dtype)) == "");
}

void expect_splits(const Int8Case& c, int num_splits) {
  Int8Setup setup(c);
  run_splits(setup, num_splits);
  INFO(c.describe(), " splits ", num_splits);
  CHECK(setup.difference(tolerance_of(c.output_dtype)) == "");
}

Int8Case random_case(std::uint64_t seed) {
  std::mt19937_64 random(seed);
  const auto pick = [&](std::initializer_list<int> values) {
    return values.begin()[random() % values.size()];
  };
  Int8Case c;
  c.seed = seed;
  c.level = pick({1, 2});
  c.query_lens.clear();
  c.seq_lens.clear();
  const bool decode = pick({0, 1}) == 1;
  for (int b = pick({1, 2, 3}); b > 0; --b) {
    const int query_len = decode ? pick({1, 1, 2, 4}) : pick({0, 1, 3, 17, 80});
    c.query_lens.push_back(query_len);
    c.seq_lens.push_back(query_len + pick({0, 0, 5, 63, 64, 129, 300}));
  }
  c.num_kv_heads = pick({1, 2});
  c.num_heads = c.num_kv_heads * pick({1, 2, 4, 7, 8, 16});
  c.head_size = pick({32, 40, 64, 80, 96, 128});
  c.output_dtype = static_cast<Dtype>(pick({0, 1, 2}));
  c.transposed_scales = pick({0, 1}) == 1;
  c.soft_cap = static_cast<float>(pick({0, 0, 5, 30}));
  c.window_left = pick({-1, -1, 0, 3, 40});
  c.alibi = static_cast<attn::Alibi>(pick({0, 0, 1, 3, 4}));
  return c;
}

}  // namespace

TEST_CASE("the score of int8 codes is the exact integer times the product of the scales") {
  // One key: the LSE is its score, whatever the softmax does.
  for (const int rows : {1, 2, 16}) {
    for (const bool extreme : {false, true}) {
      Int8Case c;
      c.head_size = 256;
      c.num_heads = rows;
      c.extreme = extreme;
      c.seed = static_cast<std::uint64_t>(rows);
      Int8Setup setup(c);
      make_cpu_ops(1)->attend(setup.params);
      for (int head = 0; head < rows; ++head) {
        CHECK(setup.lse.at(head) == setup.raw_score(0, 0, head, 0));
      }
    }
  }
}

TEST_CASE("int8 attention equals the naive definition over random features") {
  for (std::uint64_t seed = 1; seed <= 60; ++seed) expect_attend(random_case(seed));
}

TEST_CASE("split int8 attention equals the naive definition over random features") {
  for (std::uint64_t seed = 101; seed <= 140; ++seed) {
    expect_splits(random_case(seed), 1 + static_cast<int>(seed % 5));
  }
}

TEST_CASE("int8 attention covers every head size that is a multiple of eight") {
  for (int d = 8; d <= 256; d += 8) {
    Int8Case c;
    c.head_size = d;
    c.level = 1 + d / 8 % 2;
    c.query_lens = {2};
    c.seq_lens = {37};
    expect_attend(c);
  }
}

TEST_CASE("int8 attention of a request without keys gives zero and an LSE of minus infinity") {
  for (const int level : {1, 2}) {
    Int8Case c;
    c.level = level;
    c.query_lens = {1, 2, 0};
    c.seq_lens = {0, 20, 0};
    expect_attend(c);
    expect_splits(c, 3);
  }
}

TEST_CASE("leading int8 rows that stand before the first key are empty") {
  Int8Case c;
  c.query_lens = {6};
  c.seq_lens = {4};
  expect_attend(c);
}

TEST_CASE("a NaN key scale reaches the rows that see its key and no others") {
  Int8Case c;
  c.query_lens = {3};
  c.seq_lens = {3};
  c.num_heads = 1;
  Int8Setup setup(c);
  attn::Int8CacheWriteParams last = setup.save;
  const float nan = std::numeric_limits<float>::quiet_NaN();
  last.key = setup.save.key + 2 * c.head_size;
  last.value = static_cast<const char*>(setup.save.value) + 2 * c.head_size;
  last.key_scale = &nan;
  last.slot_mapping = &setup.slot_mapping[2];
  last.num_tokens = 1;
  const auto ops = make_cpu_ops(1);
  ops->write_cache_int8(last);
  ops->attend(setup.params);
  CHECK(std::isfinite(setup.output.at(0)));
  CHECK(std::isfinite(setup.output.at(c.head_size)));
  CHECK(std::isnan(setup.output.at(2 * c.head_size)));
}

TEST_CASE("fused save, separate write and a full cache give the same bytes") {
  for (std::uint64_t seed = 201; seed <= 220; ++seed) {
    const Int8Case c = random_case(seed);
    Int8Setup filled(c), separate(c), fused(c);
    separate.forget_new_tokens();
    fused.forget_new_tokens();
    const auto ops = make_cpu_ops(2);
    ops->attend(filled.params);
    attn::Int8CacheWriteParams write = separate.save;
    write.slot_mapping = separate.slot_mapping.data();
    ops->write_cache_int8(write);
    ops->attend(separate.params);
    ops->save_and_attend_int8(fused.save, fused.params);
    INFO(c.describe());
    for (const Int8Setup* other : {&separate, &fused}) {
      CHECK(std::memcmp(filled.output.bytes(), other->output.bytes(), filled.output.size_bytes()) ==
            0);
      CHECK(std::memcmp(filled.lse.bytes(), other->lse.bytes(), filled.lse.size_bytes()) == 0);
    }
  }
}

TEST_CASE("an int8 query of zeros with scale zero weighs all keys alike") {
  Int8Case c;
  c.seq_lens = {40};
  Int8Setup setup(c);
  std::vector<float> zeros(2, 0.0f);
  setup.params.int8.query_scale = zeros.data();
  make_cpu_ops(1)->attend(setup.params);
  CHECK(setup.lse.at(0) == doctest::Approx(std::log(40.0)).epsilon(1e-6));
}

}  // namespace attnbench::cpu::int8_attention_test
