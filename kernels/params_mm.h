// Arguments of the multimodal encoder's fp8 operations (semantics §10.5, §10.6). Its attention is
// attend() on ragged e4m3 tensors: k_scale is the product of the scales of query and key, v_scale
// that of the value, and the head size is padded to a multiple of 16 with zeros, which change no
// score and give output columns that are dropped.
#pragma once

#include "kernels/params.h"

namespace attn {

/// quantize_fp8_maybe_pad_head_dim. Where D is padded, codes are rn_e4m3(x / scale); where it is
/// not, rn_e4m3(x * (1 / scale)); both saturate. NaN gives 0x7F. Why two formulas: upstream has a
/// kernel for each case, and the codes are to be the same bytes.
struct PadQuantiseParams {
  Element source_element;  // f16, bf16 or f32
  const void* source;      // [S, H, D]
  i64 source_token_stride;
  i64 source_head_stride;
  unsigned char* codes;  // e4m3 [S, H, Dp] contiguous; columns >= D become 0
  const float* scale;    // [1], finite, > 0, possibly subnormal; or null: no scaling
  i64* num_saturated;    // [1], is increased by the elements beyond +-464; or null
  i64 num_tokens;        // S
  int num_heads;
  int head_size;         // D
  int padded_head_size;  // Dp, D rounded up to 16
};

/// Calls whose amax the encoder's dynamic scales look back on.
constexpr int kAmaxHistoryLength = 16;

/// Records one amax per tensor and makes scale = max(largest of the ring, 2^-126) / 448, which may
/// be subnormal and is stored as such. A NaN in the ring makes the scale NaN. The host advances
/// `position` after the call, for all tensors of a layer at once.
struct AmaxHistoryParams {
  const float* amax;  // [num_tensors]
  float* history;     // [num_tensors, kAmaxHistoryLength], zero before the first call
  float* scale;       // [num_tensors]
  int position;       // call number modulo kAmaxHistoryLength
  int num_tensors;
};

/// Queries, keys or values of the encoder in the model's type: [num_tokens, num_heads, D] by these
/// strides in elements. What lies between is never read.
struct EncoderTensor {
  const void* source;
  i64 num_tokens;
  int num_heads;
  i64 token_stride;
  i64 head_stride;
};

/// Most CTAs of one tensor whose maxima encoder_scales() collects.
constexpr int kMostAmaxCtas = 1024;

/// Dynamic scales of one forward in one launch: amax() of queries, keys and values,
/// update_amax_history() of the three, and the scales as attention takes them. The same numbers as
/// by these operations one after the other.
struct EncoderScalesParams {
  Element element;           // f16, bf16 or f32
  EncoderTensor tensors[3];  // Q, K, V; K and V with as many heads
  int head_size;
  int is_signed;     // as AmaxParams has it
  float* amax;       // [3]
  float* history;    // [3, kAmaxHistoryLength], zero before the first call
  float* scale;      // [3]
  int position;      // as AmaxHistoryParams has it
  float* kv_scales;  // [2, Hk]: scale[0] * scale[1] for each head, then scale[2]; or null
  int num_kv_heads;  // Hk
  float* partial;    // [3, kMostAmaxCtas] workspace
  int* arrivals;     // [1], 0 before and after
};

/// quantise_pad_fp8() of queries, keys and values in one launch.
struct EncoderQuantiseParams {
  Element source_element;  // f16, bf16 or f32
  EncoderTensor tensors[3];
  unsigned char* codes[3];  // as PadQuantiseParams has them, each
  const float* scale[3];    // each [1] or null
  i64* num_saturated;       // [3] or null
  int head_size;
  int padded_head_size;
};

}  // namespace attn
