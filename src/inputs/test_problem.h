// A small problem that the tests of this folder vary.
#pragma once

#include <cmath>

#include "core/problem/problem.h"

namespace attnbench {

/// Decoder, H 4, Hk 2, D 8, bfloat16, blocks of 16, 24 blocks: a decode with context, a chunked
/// prefill, a padding row and a fresh prefill.
inline Problem small_problem() {
  Problem problem;
  problem.attention.num_heads = 4;
  problem.attention.num_kv_heads = 2;
  problem.attention.head_size = 8;
  problem.attention.v_head_size = 8;
  problem.attention.scale = 1 / std::sqrt(8.0);
  problem.kv_cache.num_blocks = 24;
  problem.batch = {{1, 33}, {5, 48}, {0, 0}, {20, 20}};
  problem.inputs.seed = 11;
  return problem;
}

}  // namespace attnbench
