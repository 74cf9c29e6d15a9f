// Problem + seed -> the tensors of an MLA case: query, latents, weights, top-k indices, and the
// paged cache of latents with poison in every byte that must be ignored (semantics §8).
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "core/problem/problem.h"
#include "core/tensor.h"
#include "inputs/index_inputs.h"
#include "inputs/sparse_lists.h"

namespace attnbench {

/// What all backends of an MLA case share. T = new tokens, T_pad >= T, S = sum of seq_lens.
struct MlaInputs {
  Tensor query;  // [T_pad, N, P + R] in attention.dtype; rows >= T are NaN
  Tensor kv_c;   // [S, Lkv] in attention.dtype, position order, requests concatenated
  Tensor k_pe;   // [S, R]; never poisoned
  Tensor w_uk;   // [N, P, Lkv] in attention.dtype, dequantised where kv_b_proj is quantised
  Tensor w_uv;   // [N, Lkv, V]; likewise
  /// Where mla.kv_b_proj.dtype is fp8, the matrix as checkpoints have it; else both are empty.
  Tensor kv_b_proj;        // e4m3 [N * (P + V), Lkv], of each head the P rows of K first
  Tensor kv_b_proj_scale;  // f32 [1], or [ceil(N * (P + V) / block), ceil(Lkv / block)]
  Tensor topk_indices;     // i32 [T, topk] positions in the row's request, -1 = none; or empty
  /// Where mla.sparse.topk_length is given: the lists with entries that do not count, and the
  /// lengths (SparseLists); else empty.
  Tensor topk_listed;                      // i32 [T, topk]
  std::vector<std::int32_t> topk_lengths;  // [T]
  MlaExtraKeys extra;                      // of the second cache; or empty
  std::vector<float> sinks;                // [N] or empty
  IndexInputs index;  // of mla.sparse.indices indexer, which chooses them; else empty
  std::vector<std::int32_t> query_start_loc;  // [B+1]
  std::vector<std::int32_t> seq_lens;         // [B]
  std::vector<std::int64_t> key_start_loc;    // [B+1] exclusive sum of seq_lens
  std::vector<std::string> notices;

  std::int64_t num_tokens() const { return query_start_loc.back(); }
  /// The lists as kernels get them.
  const Tensor& given_topk() const { return topk_listed.empty() ? topk_indices : topk_listed; }
};

/// Seeded draw, or inputs.file. Query and latents as in make_inputs(); weights are normal with
/// standard deviation 1 / sqrt(Lkv) for W_UK and 0.75 / sqrt(Lkv) for W_UV, so that a value is no
/// larger than about 4 for inputs.std 1. A row of topk_indices lists round(valid * visible) of the
/// visible positions, at most topk of them, in random order; a share `duplicates` of them repeats
/// another one of the list, and the entries without a position are -1 at random places.
/// The second cache and its lists are drawn likewise, of mla.sparse.extra_keys keys a request.
/// The probe adds half a deviation to latents and turns queries towards needles.
/// Errors: E-IO, E-FORMAT, E-SHAPE, E-DTYPE, E-VALUE, E-CAPACITY.
MlaInputs make_mla_inputs(const Problem& problem);

/// Keys that a row of request `b` sees in both caches where it sees `visible` positions: about so
/// many where topk_length cuts lists that also have entries without a key.
double num_counted_keys(const Problem& problem, std::size_t b, std::int64_t visible);

/// Entries of a row of topk_indices that name a key, drawn for a row that sees `visible` positions.
std::int64_t num_listed_keys(const MlaSpec& mla, std::int64_t visible);

}  // namespace attnbench
