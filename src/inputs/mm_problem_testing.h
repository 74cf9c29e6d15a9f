// A small problem of the multimodal encoder, for tests.
#pragma once

#include <cmath>

#include "core/problem/problem.h"

namespace attnbench {

/// One layer, two heads for each KV head; sequences of 33, 0, 1 and 40 tokens.
inline Problem small_mm_problem(int head_size, MmAttnDtype dtype = MmAttnDtype::kAuto) {
  Problem p;
  p.scenario = p.case_name = "t";
  AttentionSpec& a = p.attention;
  a.type = AttentionType::kMmEncoder;
  a.causal = false;
  a.num_heads = 4;
  a.num_kv_heads = 2;
  a.head_size = a.v_head_size = head_size;
  a.scale = 1 / std::sqrt(double(head_size));
  p.mm_encoder.hidden_size = a.num_heads * head_size;
  p.mm_encoder.attn_dtype = dtype;
  p.mm_encoder.layer_names = {"visual.blocks.0.attn.attn"};
  p.batch = {{33, 33}, {0, 0}, {1, 1}, {40, 40}};
  return p;
}

}  // namespace attnbench
