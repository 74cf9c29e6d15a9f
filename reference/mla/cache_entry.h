// The bytes that MLA's cache holds for given latents, and what reading them back yields
// (semantics §8.4.1, §8.4.3, §15.1).
#pragma once

#include "core/problem/problem.h"
#include "core/tensor.h"

namespace attnbench {

struct StoredMlaCache {
  /// [S, Lkv + R] of the inputs' dtype or e4m3; u8 [S, 656] for fp8_ds_mla. Row = entry of a token.
  Tensor codes;
  Tensor kv_c_dequantized;  // f32 [S, Lkv]: what the reference reads
  Tensor k_pe_dequantized;  // f32 [S, R]
};

/// kv_c [S, Lkv] and k_pe [S, R], f16, bf16 or f32 alike.
/// auto, float16, bfloat16: bit copy (E-DTYPE when the inputs are of another type).
/// fp8, fp8_e4m3: rn_e4m3(x / k_scale), read back as code * k_scale in f32; E-VALUE for a bad
/// scale. fp8_ds_mla: 656-byte entries whose values read back as bf16; k_scale is ignored; Lkv =
/// 512, R = 64 and bf16 inputs, else E-SHAPE, E-DTYPE. Other cache types are E-CONFIG.
StoredMlaCache store_mla_cache(const Tensor& kv_c, const Tensor& k_pe, KvCacheDtype dtype,
                               float k_scale);

}  // namespace attnbench
