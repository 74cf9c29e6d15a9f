// Screening against the reference: the device code on emulated threads for every mask and layout.
#include "bench/judge/screen.h"

#include <doctest/doctest.h>

#include <cmath>
#include <functional>
#include <limits>
#include <random>
#include <string>

#include "bench/judge/device_screen.h"
#include "ops/cuda/testing/emulated_screen_testing.h"
#include "ops/ops.h"
#include "reference/naive_attention.h"

namespace attnbench {
namespace {

constexpr double kNaN = std::numeric_limits<double>::quiet_NaN();

/// Two requests with GQA: more queries than a tile of few rows holds, keys that end within a tile.
NaiveCase small_case(Dtype dtype = Dtype::kBF16) {
  NaiveCase c;
  c.num_heads = 4;
  c.num_kv_heads = 2;
  c.head_size = 32;
  c.v_head_size = 32;
  c.math.softmax_scale = 0.3;
  c.math.causal = true;
  c.math.window_right = 0;
  c.add_request(3, 70);
  c.add_request(10, 21);
  std::mt19937 generator(7);
  std::normal_distribution<float> normal;
  c.fill(dtype, [&] { return normal(generator); });
  return c;
}

void refill(NaiveCase& c, Dtype dtype) {
  std::mt19937 generator(11);
  std::normal_distribution<float> normal;
  c.fill(dtype, [&] { return normal(generator); });
}

/// The reference's output, rounded as a kernel would.
Tensor output_of(const ReferenceOutput& reference, Dtype dtype) {
  Tensor output(dtype, {static_cast<std::int64_t>(reference.rows.size()), reference.num_heads,
                        reference.v_head_size});
  for (std::int64_t i = 0; i < output.num_elements(); ++i) {
    output.set(i, static_cast<float>(reference.output[static_cast<std::size_t>(i)]));
  }
  return output;
}

struct Emulated {
  std::unique_ptr<Ops> ops = make_cpu_ops(1);
  cuda::EmulatedScreenLauncher launcher;
  std::unique_ptr<RowScreen> screen = make_device_screen(*ops, launcher);
};

bool same(double a, double b, double unit) {
  if (std::isnan(a) || std::isnan(b)) return std::isnan(a) && std::isnan(b);
  if (std::isinf(a) || std::isinf(b)) return a == b;
  return std::abs(a - b) <= 1e-12 * (unit + std::abs(b));
}

/// All numbers of the device's table are those of the reference.
void check_agrees(const NaiveCase& c, Dtype output_type = Dtype::kBF16) {
  const ReferenceOutput reference = *reference_attention(c.math, c.inputs(), c.all_rows(), {1, {}});
  const Tensor output = output_of(reference, output_type);
  const ScreenedOutput screened{&output, output_type == Dtype::kE4M3 ? 0.25 : 0.0};
  Emulated device;
  const ScreenTable actual = device.screen->compare(c.math, c.inputs(), screened);
  const ScreenTable expected = screen_by(reference, screened);
  REQUIRE(actual.rows == expected.rows);
  REQUIRE(actual.of.size() == expected.of.size());
  for (std::size_t i = 0; i < actual.of.size(); ++i) {
    const ScreenedRow& a = actual.of[i];
    const ScreenedRow& e = expected.of[i];
    CAPTURE(i);
    CHECK(same(a.error, e.error, e.size));
    CHECK(same(a.expected, e.expected, e.size));
    CHECK(same(a.size, e.size, e.size));
    CHECK(same(a.largest, e.largest, e.size));
    CHECK(same(a.lse, e.lse, 1));
    CHECK(a.misplaced == e.misplaced);
  }
}

}  // namespace

TEST_CASE("the screening kernel gives what the reference gives, under every mask and bias") {
  struct Variant {
    const char* name;
    std::function<void(NaiveCase&)> change;
  };
  const Variant variants[] = {
      {"causal", [](NaiveCase&) {}},
      {"all keys",
       [](NaiveCase& c) {
         c.math.causal = false;
         c.math.window_right = -1;
       }},
      {"window", [](NaiveCase& c) { c.math.window_left = 5; }},
      {"window to both sides",
       [](NaiveCase& c) {
         c.math.causal = false;
         c.math.window_left = 3;
         c.math.window_right = 4;
       }},
      {"soft-cap", [](NaiveCase& c) { c.math.logits_soft_cap = 1.5; }},
      {"sinks",
       [](NaiveCase& c) {
         c.sinks = {0.5f, -3.0f, 9.0f, 0.0f};
       }},
      {"infinite sinks",
       [](NaiveCase& c) {
         c.sinks = {std::numeric_limits<float>::infinity(), -std::numeric_limits<float>::infinity(),
                    0.0f, 1.0f};
       }},
      {"prefix",
       [](NaiveCase& c) {
         c.math.window_left = 4;
         c.math.mm_prefix_ranges = {{{60, 69}}, {{12, 15}, {14, 18}}};
       }},
  };
  for (const Variant& variant : variants) {
    CAPTURE(variant.name);
    NaiveCase c = small_case();
    c.math.has_sinks = false;
    variant.change(c);
    c.math.has_sinks = !c.sinks.empty();
    check_agrees(c);
  }
  for (const AlibiForm form : {AlibiForm::kKeyIndex, AlibiForm::kContextRelative,
                               AlibiForm::kDistance, AlibiForm::kSqrt}) {
    CAPTURE(static_cast<int>(form));
    NaiveCase c = small_case();
    c.math.alibi = form;
    c.math.causal = false;
    c.math.window_right = 6;
    c.alibi_slopes = {0.5f, 0.1f, 0.02f, 0.25f};
    check_agrees(c);
  }
}

TEST_CASE("the screening kernel takes every type, head size and number of heads") {
  for (const Dtype dtype : {Dtype::kF32, Dtype::kF16, Dtype::kBF16}) {
    CAPTURE(dtype_name(dtype));
    check_agrees(small_case(dtype), dtype);
  }
  check_agrees(small_case(), Dtype::kE4M3);
  struct Sizes {
    int heads, kv_heads, head_size, v_head_size;
  };
  for (const Sizes& s : {Sizes{1, 1, 40, 72}, Sizes{6, 2, 16, 130}, Sizes{24, 1, 72, 300}}) {
    CAPTURE(s.heads);
    NaiveCase c;
    c.num_heads = s.heads;
    c.num_kv_heads = s.kv_heads;
    c.head_size = s.head_size;
    c.v_head_size = s.v_head_size;
    c.math.softmax_scale = 0.2;
    c.math.window_right = 0;
    c.key_padding = 2;
    c.add_request(2, 40);
    refill(c, Dtype::kF32);
    check_agrees(c, Dtype::kF32);
  }
}

TEST_CASE("rows that see no key, and requests without rows or keys, are screened") {
  NaiveCase c = small_case();
  c.add_request(5, 3);  // two rows before the first key
  c.add_request(0, 9);
  c.add_request(2, 0);
  refill(c, Dtype::kBF16);
  check_agrees(c);
}

TEST_CASE("keys that several blocks share are merged to the same numbers") {
  NaiveCase c;
  c.num_heads = 2;
  c.num_kv_heads = 1;
  c.head_size = c.v_head_size = 16;
  c.math.softmax_scale = 0.5;
  c.math.window_right = 0;
  c.sinks = {2.0f, 1.0f};
  c.math.has_sinks = true;
  c.add_request(1, 1700);
  refill(c, Dtype::kBF16);
  check_agrees(c);
  const std::vector<std::int32_t> begin{0};
  const std::vector<std::int32_t> end{1700};
  cuda::ScreenInputs inputs;
  inputs.query = &c.query;
  inputs.key = &c.key;
  inputs.value = &c.value;
  inputs.query_start_loc = c.query_start_loc;
  inputs.seq_lens = c.seq_lens;
  inputs.key_start_loc = c.key_start_loc;
  inputs.visible_begin = begin;
  inputs.visible_end = end;
  const cuda::ScreenPlan plan = cuda::plan_screen(inputs.batch(), 132);
  CHECK(plan.merges.size() == 1);
  CHECK(plan.num_partials > 1);
  CHECK(plan.items.size() == static_cast<std::size_t>(plan.num_partials));
}

TEST_CASE("a NaN of a key reaches the rows that see it and no other") {
  NaiveCase c = small_case();
  c.value.set((5 * 2 + 1) * 32 + 3, static_cast<float>(kNaN));      // key 5 of request 0
  c.key.set((70 * 2 + 0 + 2 * 15) * 32, static_cast<float>(kNaN));  // key 15 of request 1
  check_agrees(c);
}

TEST_CASE("what is wrong in an output shows in its row") {
  NaiveCase c = small_case();
  const ReferenceOutput reference = *reference_attention(c.math, c.inputs(), c.all_rows(), {1, {}});
  Tensor output = output_of(reference, Dtype::kBF16);
  for (std::int64_t i = 0; i < 32; ++i) output.set((2 * 4 + 1) * 32 + i, 0.0f);  // token 2, head 1
  output.set((7 * 4 + 3) * 32 + 9, static_cast<float>(kNaN));                    // token 7, head 3
  Emulated device;
  const ScreenTable table = device.screen->compare(c.math, c.inputs(), {&output});
  for (std::size_t row = 0; row < table.rows.size(); ++row) {
    for (std::int64_t head = 0; head < 4; ++head) {
      CAPTURE(row);
      CAPTURE(head);
      const ScreenedRow& r = table.at(row, head);
      const bool zeroed = row == 2 && head == 1;
      CHECK((r.error > 0.5 * r.expected) == zeroed);
      CHECK(r.misplaced == (row == 7 && head == 3 ? 1 : 0));
    }
  }
}

}  // namespace attnbench
