#include "inputs/mm_inputs.h"

#include <doctest/doctest.h>

#include <cmath>
#include <cstring>

#include "core/error.h"
#include "inputs/test_problem.h"

namespace attnbench {
namespace {

/// Three images of 7, 0 and 12 patches; H 4, Hk 2, D 8.
Problem mm_problem() {
  Problem problem = small_problem();
  problem.attention.type = AttentionType::kMmEncoder;
  problem.attention.causal = false;
  problem.batch = {{7, 7}, {0, 0}, {12, 12}};
  problem.mm_encoder.hidden_size = 32;
  problem.mm_encoder.layer_names = {"a", "b"};
  return problem;
}

bool holds_same_bytes(const Tensor& a, const Tensor& b) {
  return a.shape() == b.shape() && std::memcmp(a.bytes(), b.bytes(), a.size_bytes()) == 0;
}

}  // namespace

TEST_CASE("images become cu_seqlens, empty ones included") {
  const MmInputs inputs = make_mm_inputs(mm_problem());
  REQUIRE(inputs.cu_seqlens);
  CHECK(*inputs.cu_seqlens == std::vector<std::int32_t>{0, 7, 7, 19});
  CHECK(inputs.tensors.key.shape() == std::vector<std::int64_t>{19, 2, 8});
  CHECK(inputs.tensors.value.shape() == std::vector<std::int64_t>{19, 2, 8});
  CHECK(inputs.tensors.num_tokens() == 19);
}

TEST_CASE("the form of batch_size and kv_len has no cu_seqlens and may have other key lengths") {
  Problem problem = mm_problem();
  problem.mm_encoder.batch_size = 2;
  problem.mm_encoder.kv_len = 9;
  problem.batch = {{5, 9}, {5, 9}};
  const MmInputs inputs = make_mm_inputs(problem);
  CHECK_FALSE(inputs.cu_seqlens);
  CHECK(inputs.tensors.num_tokens() == 10);
  CHECK(inputs.tensors.key.dim(0) == 18);
}

TEST_CASE("V lies behind Q and K in rows of three units, and all else there is NaN") {
  const Problem problem = mm_problem();
  const MmInputs inputs = make_mm_inputs(problem);
  const InterleavedValue value = interleave_value(problem, inputs.tensors);
  CHECK(value.token_stride == 96);
  CHECK(value.first == 64);
  for (std::int64_t token = 0; token < 19; ++token) {
    for (std::int64_t column = 0; column < 96; ++column) {
      const float found = value.rows.at(token * 96 + column);
      const bool is_value = column >= 64 && column < 64 + 16;
      CHECK(std::isnan(found) == !is_value);
      if (is_value) CHECK(found == inputs.tensors.value.at(token * 16 + column - 64));
    }
  }
}

TEST_CASE("a row too short for the value heads is a contradiction") {
  Problem problem = mm_problem();
  problem.attention.num_kv_heads = 4;
  problem.mm_encoder.tp_size = 2;  // 3 * 16 elements for 32 of V
  const MmInputs inputs = make_mm_inputs(problem);
  CHECK(interleave_value(problem, inputs.tensors).first == 16);
  problem.mm_encoder.tp_size = 4;
  CHECK_THROWS_AS(interleave_value(problem, inputs.tensors), Error);
}

TEST_CASE("every step of every layer sees tensors of its own, the same in every run") {
  const Problem problem = mm_problem();
  const Tensor base = make_mm_inputs(problem).tensors.key;
  const Tensor first = make_mm_observation(problem, 0, 0).key;
  CHECK(holds_same_bytes(first, make_mm_observation(problem, 0, 0).key));
  CHECK_FALSE(holds_same_bytes(first, base));
  CHECK_FALSE(holds_same_bytes(first, make_mm_observation(problem, 0, 1).key));
  CHECK_FALSE(holds_same_bytes(first, make_mm_observation(problem, 1, 0).key));
}

}  // namespace attnbench
