// Keys whose last columns all heads share and have a place of their own: who takes them, and by
// which boxes they come.
#include <doctest/doctest.h>

#include <array>

#include "core/error.h"
#include "ops/cuda/attention/candidates.h"
#include "ops/cuda/attention/hopper_problem_testing.h"

namespace attnbench::cuda {
namespace {

/// 16 heads with keys of their own, of 192 columns, of which the last 64 lie behind latents of 512.
struct ApartProblem : HopperProblem {
  explicit ApartProblem(int query_len = 100) : HopperProblem(query_len, 192, 128) {
    params.num_kv_heads = params.num_heads;
    attn::KvParams& kv = params.kv;
    kv.head_stride_key = kv.head_stride_value = 256;
    kv.token_stride_key = kv.token_stride_value = 16 * 256;
    kv.rope = memory.data() + 64;
    kv.rope_token_stride = 576;
    kv.rope_size = 64;
  }
  AttendDecision decision(std::string_view forced = {}) const {
    AttendCall call;
    call.params = &params;
    return decide_attend(target_of_sm(90), call, forced);
  }
  std::string chosen() const {
    for (const CandidateVerdict& verdict : decision().candidates) {
      if (verdict.is_chosen) return verdict.name;
    }
    return "";
  }
  bool is_taken(std::string_view forced = {}, int sm = 90) const {
    return takes_rope_apart(target_of_sm(sm), params, forced);
  }
};

}  // namespace

TEST_CASE("keys whose rope part lies apart are the Hopper kernel's, and whole ones any other's") {
  const ApartProblem problem;
  CHECK(problem.chosen() == "hopper_prefill");
  for (const CandidateVerdict& verdict : problem.decision().candidates) {
    CAPTURE(verdict.name);
    const bool is_ours = verdict.name == "hopper_prefill";
    CHECK(verdict.reason ==
          (is_ours ? "" : "keys whose rope part lies apart: it reads whole keys"));
  }
  AttendCall call;
  call.params = &problem.params;
  CHECK_THROWS_AS(choose_attend(target_of_sm(90), call, "prefill"), Error);
  CHECK(problem.is_taken());
  CHECK(problem.is_taken("hopper_prefill:stages=3"));
  CHECK_FALSE(problem.is_taken("prefill"));
  CHECK_FALSE(problem.is_taken("hopper_tiles"));
  CHECK_FALSE(problem.is_taken({}, 80));
  // So few rows are the decode kernel's, where keys are whole.
  CHECK(ApartProblem(16).chosen() == "hopper_prefill");
  CHECK_FALSE(ApartProblem(16).is_taken());
  CHECK(ApartProblem(17).is_taken());
}

TEST_CASE("a rope part that lies apart is of contiguous keys, 16 bits, and whole lines") {
  const auto misfit = [](const auto& change) {
    ApartProblem problem;
    change(problem.params);
    CHECK_FALSE(problem.is_taken());
    return problem.misfit();
  };
  using attn::AttendParams;
  static constexpr int kTable = 0;
  CHECK(ApartProblem().misfit() == "");
  CHECK(misfit([](AttendParams& p) {
          p.query_element = p.kv.element = attn::Element::kE4M3;
          p.e4m3_probability = 1;
        }) == "codes of keys whose rope part lies apart");
  CHECK(misfit([](AttendParams& p) { p.kv.rope_size = 32; }) ==
        "keys of 160 columns and 32 that lie apart, which are not multiples of 64");
  CHECK(misfit([](AttendParams& p) { p.kv.rope_size = 192; }) ==
        "keys of 0 columns and 192 that lie apart, which are not multiples of 64");
  CHECK(misfit([](AttendParams& p) { p.kv.rope_token_stride = 580; }) ==
        "rope parts of keys lie 580 elements apart, on multiples of 8 bytes");
  CHECK(misfit([](AttendParams& p) {
          p.kv.block_table = &kTable;
          p.kv.block_size = 16;
        }) == "keys over pages whose rope part lies apart");
}

TEST_CASE("keys whose rope part lies apart come by two boxes that fill the stage of whole keys") {
  const ApartProblem apart;
  HopperProblem whole(apart.params.max_query_len, 192, 128);
  whole.params.num_kv_heads = apart.params.num_kv_heads;
  const HopperPlan plan = hopper_plan(apart.params);
  CHECK(plan.reason == hopper_plan(whole.params).reason);
  const int rows = plan.tile.tile_n;
  const TensorMap keys = hopper_key_map(apart.params, plan);
  const TensorMap ropes = hopper_rope_map(apart.params, plan);
  CHECK(keys.box == std::array<int, 5>{64, rows, 2, 1});
  CHECK(keys.strides == std::array<std::int64_t, 5>{2, 16 * 512, 128, 512});
  CHECK(ropes.data == apart.params.kv.rope);
  CHECK(ropes.box == std::array<int, 5>{64, rows, 1, 1});
  CHECK(ropes.strides[1] == 576 * 2);
  CHECK(ropes.extents[2] == 1);
  CHECK(ropes.extents[3] == 1);
  CHECK(ropes.swizzle == keys.swizzle);
  for (const TensorMap& map : {keys, ropes}) CHECK(tensor_map_misfit(map).empty());
  CHECK(hopper_key_map(whole.params, plan).box == std::array<int, 5>{64, rows, 3, 1});
  const KernelSpec spec = hopper_prefill_kernel(apart.params, plan).spec;
  CHECK(spec.function == "attn::hopper_prefill_rope");
  CHECK(value_of(spec, "int kRopeColumns") == "64");
  CHECK(spec.name.find(" rope apart ") != std::string::npos);
  const KernelSpec plain = hopper_prefill_kernel(whole.params, plan).spec;
  CHECK(plain.function == "attn::hopper_prefill");
  CHECK(value_of(plain, "int kRopeColumns") == "no such constant");
}

}  // namespace attnbench::cuda
