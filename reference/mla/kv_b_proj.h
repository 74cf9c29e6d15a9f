// MLA's up-projection as checkpoints store it, one matrix kv_b_proj, and as attention uses it, two
// weights for each head (semantics §8.2). vLLM splits the matrix when it loads a model; backends
// that expand keys multiply with the joined one. Both directions copy bits, so that a round trip is
// exact and quantisation of a weight happens in one place only, wherever the caller wants it.
//
// N heads, P = qk_nope_head_dim, V = v_head_dim, Lkv = kv_lora_rank; tensors are row-major.
#pragma once

#include <optional>

#include "core/tensor.h"

namespace attnbench {

/// [N * (P + V), Lkv] of w_uk [N, P, Lkv] and w_uv [N, Lkv, V], of each head the P rows of K first.
/// Bits are copied. E-SHAPE, E-DTYPE when the two do not fit together.
Tensor join_kv_b_proj(const Tensor& w_uk, const Tensor& w_uv);

// The two weights of MLA's up-projection, cut out of kv_b_proj (semantics §8.2).

struct MlaWeights {
  Tensor w_uk_t;  // [N, P, Lkv]
  Tensor w_uv;    // [N, Lkv, V]
};

/// kv_b_proj [N * (P + V), Lkv], of each head the P rows of K first. Bits are copied.
/// E-SHAPE for any other size, E-DTYPE unless f16, bf16 or f32 (dequantise before).
MlaWeights split_kv_b_proj(const Tensor& kv_b_proj, std::int64_t num_heads,
                           std::int64_t kv_lora_rank, std::int64_t qk_nope_head_dim,
                           std::int64_t v_head_dim);

// Checkpoints may have the matrix quantised: DeepSeek-V3 ships e4m3 with weight_scale_inv, a scale
// for each block of 128 x 128. Engines dequantise it when they load the model, then split it.

/// What a model makes of a quantised kv_b_proj before it is split: e4m3 codes [rows, columns] times
/// their scale, f32 [1] or one for each `block` x `block` elements, rounded to `dtype`. E-SHAPE,
/// E-DTYPE when the two do not fit together.
Tensor dequantise_kv_b_proj(const Tensor& codes, const Tensor& scales, std::optional<int> block,
                            Dtype dtype);

}  // namespace attnbench
