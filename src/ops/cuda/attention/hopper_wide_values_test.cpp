// Where values become f16 in front of the Hopper prefill kernel, who asks for it, and the kernel
// over such pages.
#include "ops/cuda/attention/hopper_wide_values.h"

#include <doctest/doctest.h>

#include <fmt/format.h>

#include "ops/cuda/attention/candidates.h"
#include "ops/cuda/attention/hopper_problem_testing.h"

namespace attnbench::cuda {
namespace {

/// A causal prompt over pages of 16 whose values lie apart: of int8 scores, or of e4m3.
HopperProblem apart_problem(int head_size, bool is_int8, int keys = 8192) {
  static constexpr float kScale = 1.0f;
  static constexpr int kTable = 0;
  HopperProblem problem(keys, head_size, head_size, 16);
  attn::AttendParams& p = problem.params;
  p.max_seq_len = keys;
  p.query_element = p.kv.element = is_int8 ? attn::Element::kI8 : attn::Element::kE4M3;
  p.kv.value_block_table = &kTable;
  p.kv.value_block_stride = attn::i64{16} * 4 * head_size;
  if (!is_int8) return problem;
  p.kv.key_scales = p.int8.query_scale = p.int8.value_channel_scale = &kScale;
  p.int8.value_element = attn::Element::kF16;
  return problem;
}

bool pays(int head_size, bool is_int8, int keys = 8192) {
  return wide_values_pay(apart_problem(head_size, is_int8, keys).params).pays;
}

WideUse use(const HopperProblem& problem, std::string_view forced = {}, int sm = 90) {
  return wide_use(target_of_sm(sm), problem.params, forced);
}

}  // namespace

TEST_CASE("values are converted in front where converting them bounds the kernel") {
  for (const bool is_int8 : {false, true}) {
    for (const int size : {96, 128, 192, 256}) CHECK(pays(size, is_int8));
    CHECK_FALSE(pays(64, is_int8));
  }
  HopperProblem window = apart_problem(128, true);
  window.params.score.window_left = 1023;
  CHECK(wide_values_pay(window.params).pays);
  HopperProblem capped = apart_problem(256, true);
  capped.params.score.soft_cap = 30.0f;
  CHECK(wide_values_pay(capped.params).reason ==
        "what transforms scores takes longer than converting values");
  HopperProblem biased = apart_problem(256, true);
  biased.params.score.alibi = attn::Alibi::kContextRelative;
  CHECK_FALSE(wide_values_pay(biased.params).pays);
  HopperProblem invariant = apart_problem(256, true);
  invariant.params.batch_invariant = 1;
  CHECK(wide_values_pay(invariant.params).reason == "bytes may not depend on the batch");
  CHECK(wide_values_pay(apart_problem(64, true).params).reason ==
        "columns of 64: converting hides behind the products");
}

TEST_CASE("a device wants values in pages of their own where its kernel takes them and it pays") {
  CHECK(use(apart_problem(256, true)) == WideUse::kWhereItPays);
  CHECK(use(apart_problem(256, false)) == WideUse::kWhereItPays);
  CHECK(use(apart_problem(64, true)) == WideUse::kNever);
  CHECK(use(apart_problem(256, true), {}, 80) == WideUse::kNever);
  HopperProblem rounded = apart_problem(256, false);
  rounded.params.e4m3_probability = 1;
  CHECK(use(rounded) == WideUse::kNever);
  CHECK(rounded.misfit() ==
        "values in pages of their own beside weights in e4m3, or queries of 16 bits");
  // Pages of keys and values.
  HopperProblem pages(8192, 64, 64, 16);
  CHECK(use(pages) == WideUse::kWhereItPays);
  CHECK(use(pages, "hopper_prefill") == WideUse::kNever);
}

TEST_CASE("a forced kernel is asked for it by an option, which decides alone") {
  const HopperProblem narrow = apart_problem(64, true);
  CHECK(use(narrow, "hopper_prefill:wide=1") == WideUse::kAlways);
  CHECK(use(narrow, "hopper_prefill:wide=1", 80) == WideUse::kNever);
  const HopperProblem wide = apart_problem(256, true);
  CHECK(use(wide, "hopper_prefill") == WideUse::kNever);
  CHECK(use(wide, "hopper_prefill:wide=0") == WideUse::kNever);
  CHECK(use(wide, "prefill") == WideUse::kNever);
}

TEST_CASE("other kernels are never given values in pages of their own") {
  const HopperProblem problem = apart_problem(128, true);
  AttendCall call;
  call.params = &problem.params;
  for (const CandidateVerdict& verdict : decide_attend(target_of_sm(90), call, {}).candidates) {
    CAPTURE(verdict.name);
    if (verdict.name == "hopper_prefill") {
      CHECK(verdict.is_chosen);
    } else {
      CHECK(verdict.reason == "values in pages of their own: it reads those of the keys");
    }
  }
}

TEST_CASE("values in pages of their own have a map of f16, and stages that no warp converts") {
  for (const bool is_int8 : {true, false}) {
    CAPTURE(is_int8);
    HopperProblem problem = apart_problem(256, is_int8);
    CHECK(problem.misfit() == "");
    const HopperPlan plan = hopper_plan(problem.params);
    CHECK(plan.reason.find("values of f16 from pages of their own") != std::string::npos);
    CHECK(plan.tile_rows() == 128);
    CHECK_FALSE(plan.keep_columns);
    CHECK_FALSE(attn::converts_values(plan.tile));
    CHECK_FALSE(attn::transposes_values(plan.tile));
    const AttendKernel kernel = hopper_prefill_kernel(problem.params, plan);
    CHECK(value_of(kernel.spec, "bool kValuesApart") == "true");
    CHECK(kernel.spec.name.find(" values apart ") != std::string::npos);
    CHECK(kernel.shared_bytes <= attn::kHopperSharedBytes);
    const TensorMap keys = hopper_key_map(problem.params, plan);
    const TensorMap values = hopper_value_map(problem.params, plan);
    CHECK(keys.dtype == (is_int8 ? Dtype::kI8 : Dtype::kE4M3));
    CHECK(values.dtype == Dtype::kF16);
    CHECK(keys.strides[4] == 2 * 16 * 4 * 256);
    CHECK(values.strides[4] == 16 * 4 * 256 * 2);
    problem.params.kv.value_block_stride += 4;
    CHECK(problem.misfit() == "rows of keys and values lie on multiples of 8 bytes, 16 are needed");
  }
}

TEST_CASE("over values in pages of their own what would spill is left out") {
  HopperProblem window = apart_problem(128, false);
  window.params.score.window_left = 1023;
  CHECK_FALSE(hopper_plan(window.params).late_output);
  window.params.kv.value_block_table = nullptr;
  CHECK(hopper_plan(window.params).late_output);
}

TEST_CASE("over values in pages of their own int8 scores have the plan of level 2") {
  for (const int keys : {512, 2048, 8192}) {
    for (const int columns : {64, 96, 128, 256}) {
      CAPTURE(keys);
      CAPTURE(columns);
      const HopperProblem apart = apart_problem(columns, true, keys);
      HopperProblem level_2 = apart;
      level_2.params.kv.value_block_table = nullptr;
      level_2.params.int8.value_channel_scale = nullptr;
      const HopperPlan a = hopper_plan(apart.params);
      const HopperPlan b = hopper_plan(level_2.params);
      CHECK(a.tile.tile_n == b.tile.tile_n);
      CHECK(a.tile.stages == b.tile.stages);
      CHECK(a.tile.ahead == b.tile.ahead);
      CHECK(a.bounds == (b.bounds && !(b.tile.ahead && columns == 128)));
      CHECK(a.unrolled == b.unrolled);
      CHECK(a.fixed_base == b.fixed_base);
      CHECK(attn::hopper_layout(a.tile).total == attn::hopper_layout(b.tile).total);
    }
  }
}

}  // namespace attnbench::cuda
