#include "reference/attention.h"

#include <doctest/doctest.h>

#include <cmath>
#include <random>
#include <vector>

#include "core/error.h"
#include "reference/naive_attention.h"

namespace attnbench {
namespace {

class Random {
 public:
  explicit Random(std::uint64_t seed) : generator_(seed) {}
  /// In [low, high].
  int integer(int low, int high) {
    return low + static_cast<int>(generator_() % static_cast<std::uint64_t>(high - low + 1));
  }
  bool chance(int percent) { return integer(1, 100) <= percent; }
  template <typename T>
  T pick(std::initializer_list<T> values) {
    return values.begin()[integer(0, static_cast<int>(values.size()) - 1)];
  }
  float normal() { return normal_(generator_); }

 private:
  std::mt19937_64 generator_;
  std::normal_distribution<float> normal_;
};

void set_random_mask(NaiveCase& c, Random& random) {
  c.math.causal = random.chance(60);
  if (random.chance(40)) c.math.window_left = random.pick({0, 1, 2, 5, 17, 400});
  c.math.window_right = c.math.causal ? 0 : random.pick({-1, -1, 0, 3, 17});
  if (!random.chance(30)) return;
  c.math.mm_prefix_ranges.resize(c.seq_lens.size());
  for (std::size_t b = 0; b < c.seq_lens.size(); ++b) {
    for (int i = random.integer(0, 3); i > 0; --i) {
      const int start = random.integer(0, std::max(1, c.seq_lens[b]));
      c.math.mm_prefix_ranges[b].push_back({start, start + random.integer(1, 12)});
    }
  }
}

void set_random_scores(NaiveCase& c, Random& random) {
  c.math.softmax_scale = random.pick({0.1, 0.35, 1.0, 12.0});
  if (random.chance(30)) c.math.logits_soft_cap = random.pick({5.0, 30.0, 50.0});
  c.math.alibi = random.pick({AlibiForm::kNone, AlibiForm::kKeyIndex, AlibiForm::kContextRelative,
                              AlibiForm::kDistance, AlibiForm::kSqrt});
  for (int head = 0; head < c.num_heads; ++head) {
    c.alibi_slopes.push_back(std::ldexp(1.0f, -1 - head));
  }
  if (!random.chance(40)) return;
  constexpr float kInfinity = std::numeric_limits<float>::infinity();
  c.math.has_sinks = true;
  for (int head = 0; head < c.num_heads; ++head) {
    c.sinks.push_back(random.pick({-kInfinity, 0.0f, 1.5f, -3.0f, 50.0f, kInfinity}));
  }
}

/// Requests of every kind: decode, prefill, padding, no keys, more queries than keys.
NaiveCase random_case(std::uint64_t seed, int longest) {
  Random random(seed);
  NaiveCase c;
  c.num_kv_heads = random.integer(1, 3);
  c.num_heads = c.num_kv_heads * random.pick({1, 2, 3, 7});
  c.head_size = random.pick({1, 3, 8, 16, 40});
  c.v_head_size = random.chance(60) ? c.head_size : random.pick({1, 5, 24});
  c.key_padding = random.integer(0, 3);
  for (int b = random.integer(0, 4); b > 0; --b) {
    const int seq_len = random.pick({0, 1, 2, random.integer(3, longest)});
    const int query_len = random.pick({0, 1, seq_len, random.integer(0, seq_len + 4)});
    c.add_request(query_len, seq_len);
  }
  set_random_mask(c, random);
  set_random_scores(c, random);
  const Dtype dtype =
      random.pick({Dtype::kF32, Dtype::kF16, Dtype::kBF16, Dtype::kF64, Dtype::kE4M3});
  c.fill(dtype, [&] { return random.normal(); });
  return c;
}

ReferenceOutput reference_of(const NaiveCase& c, int num_threads = 1) {
  ReferenceOptions options;
  options.num_threads = num_threads;
  return reference_attention(c.math, c.inputs(), c.all_rows(), options).value();
}

/// One causal request of one head, D = Dv = 4, N(0,1) data.
NaiveCase simple_case(int query_len, int seq_len, std::uint64_t seed = 1) {
  NaiveCase c;
  c.head_size = 4;
  c.v_head_size = 4;
  c.math.window_right = 0;
  c.add_request(query_len, seq_len);
  Random random(seed);
  c.fill(Dtype::kF32, [&] { return random.normal(); });
  return c;
}

}  // namespace

TEST_CASE("the reference equals the definition on random small problems of every kind") {
  for (std::uint64_t seed = 0; seed < 600; ++seed) {
    const NaiveCase c = random_case(seed, 24);
    CHECK_MESSAGE(worst_error(c, reference_of(c)) < 1, "seed " << seed);
  }
}

TEST_CASE("the reference equals the definition across block and tile boundaries") {
  for (std::uint64_t seed = 0; seed < 12; ++seed) {
    const NaiveCase c = random_case(seed + 1000, 620);
    CHECK_MESSAGE(worst_error(c, reference_of(c, 2)) < 1, "seed " << seed);
  }
}

TEST_CASE("scores far beyond the range of exp keep their precision") {
  for (const double scale : {100.0, 1e4}) {
    NaiveCase c = simple_case(12, 20);
    c.math.softmax_scale = scale;
    CHECK(worst_error(c, reference_of(c)) < 1);
  }
}

TEST_CASE("f64 data is not rounded on its way in") {
  NaiveCase c = simple_case(1, 1);
  c.query = Tensor::from_f64(std::vector<double>{1, 0, 0, 0}, {1, 1, 4});
  c.key = Tensor::from_f64(std::vector<double>{1.0 / 3, 0, 0, 0}, {1, 1, 4});
  c.value = Tensor::from_f64(std::vector<double>{1.0 / 7, 0, 0, 0}, {1, 1, 4});
  const ReferenceOutput result = reference_of(c);
  CHECK(result.lse[0] == 1.0 / 3);
  CHECK(result.output[0] == 1.0 / 7);
}

TEST_CASE("results are the same bits for any number of threads") {
  for (std::uint64_t seed = 2000; seed < 2006; ++seed) {
    const NaiveCase c = random_case(seed, 500);
    const ReferenceOutput one = reference_of(c, 1);
    for (const int num_threads : {2, 3}) {
      const ReferenceOutput many = reference_of(c, num_threads);
      CHECK(one.output == many.output);
      CHECK(one.lse == many.lse);
    }
  }
}

TEST_CASE("chosen rows have the results they have among all rows") {
  NaiveCase c = simple_case(900, 1500);
  c.math.window_left = 40;
  const std::vector<std::int32_t> rows{0, 1, 63, 64, 500, 899};
  const ReferenceOutput chosen = reference_attention(c.math, c.inputs(), rows).value();
  CHECK(chosen.rows == rows);
  CHECK(worst_error(c, chosen) < 1);
}

TEST_CASE("moved keys and a query of the chosen rows give the bits that copies give") {
  const NaiveCase c = simple_case(40, 600);
  const std::vector<std::int32_t> rows{0, 17, 39};
  ReferenceInputs copied = c.inputs();
  // Keys 16..47 are those from 300 on.
  Tensor key = c.key;
  Tensor value = c.value;
  for (Tensor* const tensor : {&key, &value}) {
    for (std::int64_t i = 0; i < 32 * 4; ++i) tensor->set(16 * 4 + i, tensor->at(300 * 4 + i));
  }
  copied.key = &key;
  copied.value = &value;
  const ReferenceOutput expected = reference_attention(c.math, copied, rows).value();

  Tensor query(Dtype::kF32, {3, 1, 4});
  for (std::int64_t i = 0; i < 3; ++i) {
    for (std::int64_t d = 0; d < 4; ++d) {
      query.set(i * 4 + d, c.query.at(rows[static_cast<std::size_t>(i)] * 4 + d));
    }
  }
  ReferenceInputs moved = c.inputs();
  const std::vector<MovedKeys> keys{{16, 32, 300}};
  moved.query = &query;
  moved.query_is_of_rows = true;
  moved.moved_keys = keys;
  const ReferenceOutput actual = reference_attention(c.math, moved, rows).value();
  CHECK(actual.output == expected.output);
  CHECK(actual.lse == expected.lse);
  CHECK(actual.output != reference_attention(c.math, c.inputs(), rows).value().output);

  CHECK_THROWS_AS(reference_attention(c.math, moved, std::vector<std::int32_t>{0, 17}), Error);
  const std::vector<MovedKeys> beyond{{16, 32, 569}};
  moved.moved_keys = beyond;
  CHECK_THROWS_AS(reference_attention(c.math, moved, rows), Error);
}

TEST_CASE("more heads share a KV head than a block has rows") {
  NaiveCase c;
  c.num_heads = 300;
  c.math.window_right = 0;
  c.add_request(2, 5);
  Random random(4);
  c.fill(Dtype::kF32, [&] { return random.normal(); });
  CHECK(worst_error(c, reference_of(c)) < 1);
}

TEST_CASE("NaN and infinity in keys and values that a row does not see leave its bits alone") {
  const NaiveCase clean = simple_case(40, 600);
  const ReferenceOutput expected = reference_of(clean);
  constexpr int kBad = 590;  // position of the row that first sees it; context is 560
  for (const float poison :
       {std::numeric_limits<float>::quiet_NaN(), std::numeric_limits<float>::infinity()}) {
    NaiveCase c = clean;
    for (int d = 0; d < 4; ++d) {
      c.key.set(kBad * 4 + d, poison);
      c.value.set(kBad * 4 + d, poison);
    }
    const ReferenceOutput result = reference_of(c);
    for (std::size_t i = 0; i < 40 * 4; ++i) {
      const bool sees = i / 4 >= kBad - 560;
      if (!sees) CHECK(result.output[i] == expected.output[i]);
      if (sees && std::isnan(poison)) CHECK(std::isnan(result.output[i]));
    }
    for (std::size_t row = 0; row < kBad - 560; ++row) CHECK(result.lse[row] == expected.lse[row]);
  }
}

TEST_CASE("a visible NaN value reaches its own column only") {
  NaiveCase c = simple_case(3, 5);
  const ReferenceOutput clean = reference_of(c);
  c.value.set(3 * 4 + 1, std::nanf(""));
  const ReferenceOutput result = reference_of(c);
  for (std::size_t row = 0; row < 3; ++row) {
    for (std::size_t d = 0; d < 4; ++d) {
      const bool hit = row >= 1 && d == 1;  // rows stand at positions 2, 3, 4
      CHECK(std::isnan(result.output[row * 4 + d]) == hit);
      if (!hit) CHECK(result.output[row * 4 + d] == doctest::Approx(clean.output[row * 4 + d]));
    }
  }
}

TEST_CASE("a visible key of weight exactly zero contributes nothing even when its value is NaN") {
  NaiveCase c = simple_case(1, 2);
  c.query = Tensor::from_f32(std::vector<float>{1, 0, 0, 0}, {1, 1, 4});
  c.key = Tensor::from_f32(std::vector<float>{-2000, 0, 0, 0, 0, 0, 0, 0}, {2, 1, 4});
  const float nan = std::nanf("");
  c.value = Tensor::from_f32(std::vector<float>{nan, nan, nan, nan, 1, 2, 3, 4}, {2, 1, 4});
  CHECK(reference_of(c).output == std::vector<double>{1, 2, 3, 4});
}

TEST_CASE("a NaN score makes the whole row and its LSE NaN") {
  NaiveCase c = simple_case(1, 3);
  SUBCASE("one of several keys") { c.key.set(4, std::nanf("")); }
  SUBCASE("every key, through the query") { c.query.set(0, std::nanf("")); }
  const ReferenceOutput result = reference_of(c);
  for (const double value : result.output) CHECK(std::isnan(value));
  CHECK(std::isnan(result.lse[0]));
}

TEST_CASE("a row that sees nothing is zero with LSE minus infinity, or its finite sink") {
  NaiveCase c = simple_case(3, 1);  // positions -2, -1, 0
  ReferenceOutput result = reference_of(c);
  CHECK(result.output[0] == 0);
  CHECK(result.output[7] == 0);
  CHECK(result.lse[0] == -std::numeric_limits<double>::infinity());
  CHECK(std::isfinite(result.lse[2]));
  c.sinks = {2.5f};
  result = reference_of(c);
  CHECK(result.output[0] == 0);
  CHECK(result.lse[0] == 2.5);
}

TEST_CASE("an infinite sink takes all weight, minus infinity takes none") {
  constexpr float kInfinity = std::numeric_limits<float>::infinity();
  NaiveCase c = simple_case(2, 6);
  const ReferenceOutput plain = reference_of(c);
  c.sinks = {-kInfinity};
  ReferenceOutput result = reference_of(c);
  CHECK(result.output == plain.output);
  CHECK(result.lse == plain.lse);
  c.sinks = {kInfinity};
  result = reference_of(c);
  for (const double value : result.output) CHECK(value == 0);
  for (const double lse : result.lse) CHECK(lse == static_cast<double>(kInfinity));
}

TEST_CASE("no tokens and no requests give empty results") {
  NaiveCase none;
  none.fill(Dtype::kBF16, [] { return 0.0f; });
  CHECK(reference_of(none).output.empty());
  none.add_request(0, 0);
  none.fill(Dtype::kBF16, [] { return 0.0f; });
  CHECK(reference_of(none).lse.empty());
}

TEST_CASE("chosen heads have the results that they have among all") {
  for (std::uint64_t seed = 1; seed <= 60; ++seed) {
    const NaiveCase c = random_case(seed, 70);
    const ReferenceOutput all = reference_of(c);
    std::vector<int> heads;
    for (int head = 0; head < c.num_heads; ++head) {
      if ((seed * 7 + static_cast<std::uint64_t>(head) * 5) % 3 != 0) heads.push_back(head);
    }
    if (heads.empty()) continue;
    ReferenceInputs inputs = c.inputs();
    inputs.heads = heads;
    const auto some = reference_attention(c.math, inputs, c.all_rows(), {2, {}});
    REQUIRE(some);
    REQUIRE(some->num_heads == static_cast<int>(heads.size()));
    CAPTURE(seed);
    const std::size_t rows = all.rows.size();
    const auto width = static_cast<std::size_t>(all.v_head_size);
    bool same = some->output.size() == rows * heads.size() * width;
    for (std::size_t i = 0; same && i < heads.size(); ++i) {
      const auto head = static_cast<std::size_t>(heads[i]);
      for (std::size_t row = 0; row < rows; ++row) {
        const std::size_t from = row * static_cast<std::size_t>(all.num_heads) + head;
        const std::size_t to = row * heads.size() + i;
        const auto near = [](double a, double b) {
          return a == b || std::isnan(a) || std::abs(a - b) <= 1e-11 * (1 + std::abs(b));
        };
        same = same && near(some->lse[i * rows + row], all.lse[head * rows + row]) &&
               near(some->row_size[to], all.row_size[from]) &&
               near(some->lse_loss[to], all.lse_loss[from]);
        for (std::size_t v = 0; v < width; ++v) {
          same = same && near(some->output[to * width + v], all.output[from * width + v]);
        }
      }
    }
    CHECK(same);
  }
}

TEST_CASE("should_stop ends the computation without a result") {
  const NaiveCase c = simple_case(5, 5);
  ReferenceOptions options;
  options.should_stop = [] { return true; };
  CHECK_FALSE(reference_attention(c.math, c.inputs(), c.all_rows(), options).has_value());
}

TEST_CASE("inputs that contradict each other are refused with their names") {
  NaiveCase c = simple_case(2, 3);
  SUBCASE("sinks") { c.sinks = {1, 2}; }
  SUBCASE("too few keys") { c.seq_lens[0] = 4; }
  SUBCASE("head sizes") { c.key = Tensor(Dtype::kF32, {3, 1, 8}); }
  SUBCASE("slopes") { c.math.alibi = AlibiForm::kSqrt; }
  CHECK_THROWS_AS(reference_of(c), Error);
}

TEST_CASE("heads that there are not, or not in order, are refused") {
  const NaiveCase c = simple_case(2, 3);
  for (const std::vector<int>& heads : {std::vector<int>{1}, {-1}, {0, 0}}) {
    ReferenceInputs inputs = c.inputs();
    inputs.heads = heads;
    CHECK_THROWS_AS(static_cast<void>(reference_attention(c.math, inputs, c.all_rows())), Error);
  }
}

}  // namespace attnbench
