// The fp8 query of MLA decode (semantics §8.7 step 2).
#pragma once

#include <cstdint>

#include "core/tensor.h"

namespace attnbench {

struct MlaQuantisedQuery {
  Tensor codes;                // e4m3 [T, N, Lkv + R]
  std::int64_t saturated = 0;  // elements lost to saturation
};

/// rn_e4m3(cat(ql_nope, q_pe) * (1 / q_scale)) of ql_nope [T, N, Lkv] and q_pe [T, N, R], both of
/// the activation dtype. E-SHAPE, E-DTYPE, E-VALUE for a bad scale.
MlaQuantisedQuery quantise_mla_query(const Tensor& ql_nope, const Tensor& q_pe, float q_scale);

}  // namespace attnbench
