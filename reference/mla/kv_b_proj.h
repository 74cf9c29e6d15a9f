// kv_b_proj put together from MLA's two weights: the inverse of split_kv_b_proj (semantics §8.2).
#pragma once

#include "core/tensor.h"

namespace attnbench {

/// [N * (P + V), Lkv] of w_uk [N, P, Lkv] and w_uv [N, Lkv, V], of each head the P rows of K first.
/// Bits are copied. E-SHAPE, E-DTYPE when the two do not fit together.
Tensor join_kv_b_proj(const Tensor& w_uk, const Tensor& w_uv);

}  // namespace attnbench
