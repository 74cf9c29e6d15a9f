// Keys and values in few bits as a cache holds them, from their definitions: rotated with a scale
// and a zero point for each position and head (semantics §5.6), as NVFP4 (§5.7), or as the key's
// and the value's part of a slot of vLLM's TurboQuant (§5.8). store_kv() uses them.
#pragma once

#include <vector>

#include "core/numbers/kv_format.h"
#include "core/tensor.h"

namespace attnbench {

/// One of K and V of S positions.
struct PackedVectors {
  Tensor codes;        // u8 [S, Hk, D / 2], the even column in the low nibble
  Tensor scales;       // f32 [S, Hk], the zero point in the low bits; or e4m3 [S, Hk, D / 16]
  Tensor dequantized;  // f32 [S, Hk, D]
};

/// `source` [S, Hk, D] of f32, f16 or bf16; D a power of two up to 512. What is read back is
/// rotated back too, in float64.
PackedVectors store_int4(const Tensor& source);

/// What queries [T, H, D] for such a cache mean, which are rotated and then rounded to their type:
/// rotated back in float64, as f32.
Tensor read_rotated_query(const Tensor& query);

/// `scale` [1] or [Hk]: k_scale or v_scale, > 0. D a multiple of 16.
PackedVectors store_nvfp4(const Tensor& source, const std::vector<float>& scale);

/// The key's part of slots that a value shares (semantics §5.8): u8 [S, Hk, bytes of a key], e4m3
/// or indices of centroids with the norm behind them; no scales. D is a multiple of 8, and a power
/// of two where keys are rotated; those are rotated back in float64.
PackedVectors store_slot_keys(const Tensor& source, const SlotCodes& slot);

/// The value's part: u8 [S, Hk, bytes of a value], codes with step and least value as f16 behind
/// them; no scales.
PackedVectors store_slot_values(const Tensor& source, const SlotCodes& slot);

}  // namespace attnbench
