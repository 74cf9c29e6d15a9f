// What the references of multi-head latent attention read (semantics §8), checked. Latents and
// positions arrive as a flat list per request, gathered from the cache and dequantised by the
// caller; RoPE has been applied. Everything is borrowed for the duration of a call.
#pragma once

#include <cstdint>
#include <span>

#include "core/tensor.h"

namespace attnbench {

/// Borrowed tensors of one case; floating values of any type are used as they are.
struct MlaReferenceInputs {
  const Tensor* query = nullptr;  // [>=T, N, P + R], RoPE already in the last R
  const Tensor* kv_c = nullptr;   // [S, Lkv]; f32 dequantised when the cache is quantised
  const Tensor* k_pe = nullptr;   // [S, R]; likewise
  /// The same before a quantised cache, or null. Prefill requests read their own new tokens from
  /// here: their keys are expanded before the cache is read (§8.6 step 1).
  const Tensor* kv_c_unquantized = nullptr;  // [S, Lkv]
  const Tensor* k_pe_unquantized = nullptr;  // [S, R]
  const Tensor* w_uk = nullptr;              // [N, P, Lkv]
  const Tensor* w_uv = nullptr;              // [N, Lkv, V]
  /// Sparse attention (§8.9), or null: i32 [>=T, topk], positions in the row's request. What is not
  /// in [0, seq_len) is no key; duplicates count repeatedly; there is no causal test.
  const Tensor* topk_indices = nullptr;
  std::span<const std::int32_t> topk_lengths;  // [T] leftmost entries that count, or empty
  /// [N] or empty, as FlashMLA has them (§3.5): an output is multiplied by e^LSE / (e^LSE +
  /// e^sink), and the LSE is the one without.
  std::span<const float> sinks;
  /// [>=num_decode_tokens, N, Lkv + R] or null: the quantised query of decode, dequantised (§8.7
  /// step 2). The rows below num_decode_tokens then have the MQA form only.
  const Tensor* latent_query = nullptr;
  /// What its codes were multiplied by, and those of the entries that it meets; only
  /// EmulationRule::e4m3_products reads them.
  float latent_query_scale = 1;
  float entry_scale = 1;
  /// Tokens of the requests, first in the batch, that run in MQA form (§8.3); the rest are prefill.
  /// With topk_indices every row is decode, whatever this says.
  std::int64_t num_decode_tokens = 0;
  /// Prefill rows attend in e4m3: query, keys and values are rounded to it without scales, from the
  /// query's dtype (§8.6, FP8 prefill). They then have the MHA form only.
  bool fp8_prefill = false;

  std::span<const std::int32_t> query_start_loc;  // [B+1]
  std::span<const std::int32_t> seq_lens;         // [B]
  std::span<const std::int64_t> key_start_loc;    // [>=B] first row of a request in kv_c and k_pe
  double softmax_scale = 1;
};

struct MlaDims {
  std::int64_t num_heads = 0;         // N
  std::int64_t kv_lora_rank = 0;      // Lkv
  std::int64_t qk_nope_head_dim = 0;  // P
  std::int64_t qk_rope_head_dim = 0;  // R
  std::int64_t v_head_dim = 0;        // V

  std::int64_t qk_head_dim() const { return qk_nope_head_dim + qk_rope_head_dim; }
  std::int64_t entry_size() const { return kv_lora_rank + qk_rope_head_dim; }
};

/// Extents of the inputs. E-SHAPE, E-DTYPE or E-VALUE when they do not fit together, or when `rows`
/// are not ascending token indices below T.
MlaDims check_mla_inputs(const MlaReferenceInputs& inputs, std::span<const std::int32_t> rows);

/// Number of requests at the start of the batch that run in MQA form.
std::int64_t num_mla_decodes(const MlaReferenceInputs& inputs);

}  // namespace attnbench
