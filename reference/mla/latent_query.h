// The query of MLA decode in the latent space as a kernel gets it: projected, rounded and, for an
// fp8 cache, quantised (semantics §8.7 steps 1 and 2).
//
// Quantising makes small differences large: one bit of the projected query can become one code, an
// error of several percent. So the order of the sum is part of the definition here, and attention
// is judged given the codes that this order yields.
#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "core/tensor.h"

namespace attnbench {

/// ql [T, N, Lkv] = q_nope * W_UK_T in the query's dtype, of query [>=T, N, P + R] and
/// w_uk [N, P, Lkv]. Each element is summed in f32 in ascending order of P, every product and sum
/// rounded, then rounded once to the query's dtype: whoever sums in this order gets the same bits.
/// Any other order may differ in the last bit of ql, hence by one code after quantising.
Tensor project_mla_query(const Tensor& query, const Tensor& w_uk, std::int64_t num_tokens,
                         int num_threads = 0);

struct MlaLatentQuery {
  Tensor codes;                // e4m3 [T, N, Lkv + R]: rn_e4m3(cat(ql, q_pe) * (1 / q_scale))
  Tensor dequantized;          // f32, codes * q_scale: MlaReferenceInputs::latent_query
  std::int64_t saturated = 0;  // elements lost to saturation
};

/// Both steps for the first num_tokens rows. E-SHAPE, E-DTYPE (f16, bf16, f32), E-VALUE for a bad
/// scale.
MlaLatentQuery quantise_latent_query(const Tensor& query, const Tensor& w_uk,
                                     std::int64_t num_tokens, float q_scale, int num_threads = 0);

/// An element of the quantised query whose code depends on the order of the projection's sum.
struct MlaOtherCode {
  std::int32_t token = 0;
  int head = 0;
  std::int64_t column = 0;  // of the latent part
  float dequantized = 0;    // of the code that is not in MlaLatentQuery::codes
  double needed_error = 1;  // of the sum, as a share of its bound: from here on the code is another
};

/// Of every row and head at most `most`, those that need the least error first: elements whose
/// exact sum, off by as much as any order of P sums in f32 may be (2 * P units of 2^-24 of the sum
/// of the products' magnitudes), is rounded to another code. Arguments and errors as
/// quantise_latent_query, whose result is `given`.
std::vector<MlaOtherCode> other_mla_codes(const Tensor& query, const Tensor& w_uk,
                                          const MlaLatentQuery& given, float q_scale,
                                          std::span<const std::int32_t> rows,
                                          std::span<const int> heads, std::size_t most);

// The fp8 query of MLA decode (semantics §8.7 step 2).

struct MlaQuantisedQuery {
  Tensor codes;                // e4m3 [T, N, Lkv + R]
  std::int64_t saturated = 0;  // elements lost to saturation
};

/// rn_e4m3(cat(ql_nope, q_pe) * (1 / q_scale)) of ql_nope [T, N, Lkv] and q_pe [T, N, R], both of
/// the activation dtype. E-SHAPE, E-DTYPE, E-VALUE for a bad scale.
MlaQuantisedQuery quantise_mla_query(const Tensor& ql_nope, const Tensor& q_pe, float q_scale);

}  // namespace attnbench
