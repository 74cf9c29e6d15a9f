// Parameters of an attention for tests of what the host chooses for the Hopper kernels; nothing
// runs.
#pragma once

#include <array>
#include <string>

#include "ops/cuda/attention/hopper_prefill.h"

namespace attnbench::cuda {

/// Two requests of 16 heads that share 4 KV heads, bf16; contiguous keys.
struct HopperProblem {
  alignas(128) std::array<char, 128> memory{};
  attn::AttendParams params{};

  explicit HopperProblem(int query_len = 8192, int head_size = 128, int v_head_size = 128,
                         int block_size = 0) {
    static constexpr int kTable = 0;
    params.query_element = params.output_element = params.kv.element = attn::Element::kBF16;
    params.query = params.kv.key = params.kv.value = memory.data();
    params.output = memory.data();
    params.num_requests = 2;
    params.num_heads = 16;
    params.num_kv_heads = 4;
    params.max_query_len = query_len;
    params.head_size = head_size;
    params.v_head_size = v_head_size;
    params.query_head_stride = head_size;
    params.query_token_stride = 16 * head_size;
    params.output_head_stride = v_head_size;
    params.output_token_stride = 16 * v_head_size;
    params.score.softmax_scale = 0.1f;
    params.score.window_left = -1;
    params.kv.head_stride_key = head_size;
    params.kv.head_stride_value = v_head_size;
    params.kv.token_stride_key = 4 * head_size;
    params.kv.token_stride_value = 4 * v_head_size;
    if (block_size == 0) return;
    params.kv.block_table = &kTable;
    params.kv.block_size = block_size;
    params.kv.block_stride = std::int64_t{2} * block_size * 4 * head_size;
  }
  std::string misfit(int sm = 90) const { return hopper_prefill_misfit(target_of_sm(sm), params); }
};

inline std::string value_of(const KernelSpec& spec, const std::string& name) {
  for (const auto& [constant, value] : spec.constants) {
    if (constant == name) return value;
  }
  return "no such constant";
}

}  // namespace attnbench::cuda
