// A small batch of MLA in which every product of its pipelines comes up.
#pragma once

namespace attnbench::matrix {

/// Decodes, a prefill with context in chunks, a prefill without.
constexpr const char* kMlaScenario = R"(
name: products
attention: {type: mla, num_heads: 4}
mla: {kv_lora_rank: 32, qk_nope_head_dim: 16, qk_rope_head_dim: 16, v_head_dim: 24,
      workspace_tokens: 64}
kv_cache: {block_size: 16}
batch: [{query_len: 1, seq_len: 40}, {query_len: 1, seq_len: 3}, {query_len: 9, seq_len: 70},
        {query_len: 5, seq_len: 5}]
)";

}  // namespace attnbench::matrix
