// Arguments of the operations that make quantisation scales from the data (semantics §5.4, §10.6)
// and leave them in device memory, where the next operation reads them: no value passes through the
// host, so a sequence of them can be recorded in a CUDA graph.
//
// The encoder's scales, made from the largest elements of its last calls (AmaxHistoryParams), are
// in params_mm.h beside what they are for.
#pragma once

#include "kernels/params.h"

namespace attn {

/// Largest element of a strided tensor: 0 of an empty one, NaN when any element is NaN, as torch's
/// amax() has it. A maximum does not depend on the order in which it is taken, so the result is the
/// same for any number of threads.
struct AmaxParams {
  // Elements between heads and tokens by the strides are never read, nor are tokens past
  // num_tokens: the tensor may be a view of a larger one whose other parts are garbage.
  Element element;     // f16, bf16 or f32
  const void* source;  // [T, H, D]
  i64 token_stride;
  i64 head_stride;
  i64 num_tokens;
  int num_heads;
  int head_size;
  int is_signed;  // 0: max|x|; 1: max x, as upstream's encoder takes it (semantics §10.6)
  float* amax;    // [1]; overwritten, what it held before does not count
};

/// calculate_kv_scales: scale = amax / range, or 1 where that is 0 (semantics §5.4), since scales
/// divide. The largest element seen gets the code of its range, which leaves room up to 448: the
/// scales are made once, from the first tokens, and later ones may be larger.
struct KvScaleParams {
  // In this order: query, key, value. The scale of the query serves fp8 queries only; those of key
  // and value are what cache writes divide by and attention multiplies with.
  const float* amax;  // [3] of query, key, value; MLA passes that of kv_c for the last two
  float* scale;       // [3]
  float range[3];     // 200, 200, 100 unless set otherwise
};

/// How often each pattern of 16 bits occurs in each head: what percentiles, saturation and the best
/// scale of a tensor are computed from. Counts are integers, the same for any number of threads.
struct PatternCountParams {
  const void* source;  // 16 bits each, [T, H, D] without gaps
  i64 num_tokens;
  int num_heads;  // H; 1 where the whole tensor is one
  int head_size;
  i64* counts;  // [H, 65536], increased
};

}  // namespace attn
