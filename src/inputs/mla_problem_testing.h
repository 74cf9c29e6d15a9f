// For the tests: one layer of multi-head latent attention with dims that fit together.
#pragma once

#include <cmath>

#include "core/problem/problem.h"

namespace attnbench {

struct MlaTestDims {
  int num_heads = 2;
  int kv_lora_rank = 64;
  int qk_nope_head_dim = 16;
  int qk_rope_head_dim = 8;
  int v_head_dim = 16;
};

/// Sets what of the problem follows from the dims, the default scale included.
inline void set_mla_dims(const MlaTestDims& dims, Problem& problem) {
  AttentionSpec& a = problem.attention;
  a.type = AttentionType::kMla;
  a.num_heads = dims.num_heads;
  a.num_kv_heads = 1;
  a.head_size = dims.qk_nope_head_dim + dims.qk_rope_head_dim;
  a.v_head_size = dims.v_head_dim;
  a.scale = 1 / std::sqrt(static_cast<double>(a.head_size));
  problem.mla.kv_lora_rank = dims.kv_lora_rank;
  problem.mla.qk_nope_head_dim = dims.qk_nope_head_dim;
  problem.mla.qk_rope_head_dim = dims.qk_rope_head_dim;
  problem.mla.v_head_dim = dims.v_head_dim;
}

/// bfloat16, blocks of 16; cache and batch are the caller's to size.
inline Problem mla_test_problem(const MlaTestDims& dims = {}) {
  Problem problem;
  set_mla_dims(dims, problem);
  return problem;
}

}  // namespace attnbench
