// What screening reads of latent attention (semantics §8), and the kernels of its own that it
// needs.
#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "core/tensor.h"
#include "jit/kernel_spec.h"

namespace attnbench::cuda {

/// Borrowed. Some of a batch's requests, whose tokens are [first_token, last_token).
struct LatentScreenInputs {
  const Tensor* query = nullptr;  // [>=T, H, P + R]
  /// [>=T, H, Lkv + R], the query in the latent space where it was quantised there, or null.
  const Tensor* latent_query = nullptr;
  const Tensor* kv_c = nullptr;  // [S, Lkv]
  const Tensor* k_pe = nullptr;  // [S, R]
  const Tensor* w_uk = nullptr;  // [H, P, Lkv]
  const Tensor* w_uv = nullptr;  // [H, Lkv, V]
  /// Rows of kv_c in the order that key_start_loc and seq_lens count, or empty: as they are.
  std::span<const std::int32_t> key_index;
  std::span<const std::int32_t> query_start_loc;  // [B+1] tokens of query and output
  std::span<const std::int32_t> seq_lens;         // [B] keys
  std::span<const std::int64_t> key_start_loc;    // [>=B] first key
  std::span<const std::int32_t> visible_begin;    // [T]
  std::span<const std::int32_t> visible_end;      // [T]
  double softmax_scale = 1;

  /// Tokens [first, last) are those of the requests.
  std::int32_t first_token() const { return query_start_loc.front(); }
  std::int32_t last_token() const { return query_start_loc.back(); }
};

/// The kernels that latent attention needs beside those of attention.
std::vector<KernelSpec> latent_screen_specs();

}  // namespace attnbench::cuda
