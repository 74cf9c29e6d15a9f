// What FlashMLA's sparse kernels are given beside lists of keys (semantics §8.9): how much of a
// list counts, and a second cache with keys and lists of its own.
#pragma once

#include <cstdint>
#include <vector>

#include "core/problem/problem.h"
#include "core/tensor.h"

namespace attnbench {

/// Lists of keys, a row for each of T tokens.
struct SparseLists {
  Tensor indices;  // i32 [T, topk] positions in the row's request, -1 = none; or empty
  /// Where mla.sparse.topk_length is given, the lists as kernels get them: behind the length they
  /// name keys that do not count. In `indices` these are -1. Else empty.
  Tensor listed;                      // i32 [T, topk]
  std::vector<std::int32_t> lengths;  // [T]; or empty

  /// As kernels get them.
  const Tensor& given() const { return listed.empty() ? indices : listed; }
};

/// The keys of the second cache. Every request has mla.sparse.extra_keys of them, in its order.
struct MlaExtraKeys {
  Tensor kv_c;  // [B * extra_keys, Lkv]; or empty
  Tensor k_pe;  // [B * extra_keys, R]
  SparseLists lists;

  bool empty() const { return lists.indices.empty(); }
};

bool has_extra_keys(const Problem& problem);

/// The problem whose keys are those of the second cache: each request has mla.sparse.extra_keys in
/// its context and no new token, in pages of extra_block_size tokens. Its draws are others.
Problem problem_of_extra_keys(const Problem& problem);

/// Leftmost entries that count in the lists of request `b`: `lengths` is mla.sparse.topk_length or
/// extra_topk_length, `topk` the length of a list.
std::int64_t topk_length_of(const std::vector<int>& lengths, std::size_t b, std::int64_t topk);

/// `indices` cut to `lengths`, one number or one for each request; nothing changes without any.
SparseLists lists_of_lengths(const Problem& problem, Tensor indices,
                             const std::vector<int>& lengths);

/// The rows [first, first + count).
SparseLists slice_lists(const SparseLists& lists, std::int64_t first, std::int64_t count);

struct MlaInputs;

/// The keys of a case and of its second cache as one list a request, its own first, which is what a
/// reference reads: it knows no caches.
struct JoinedKeys {
  Tensor kv_c;                              // [S + B * extra_keys, Lkv]
  Tensor k_pe;                              // [S + B * extra_keys, R]
  Tensor topk_indices;                      // i32 [T, topk + extra_topk], of both lists
  std::vector<std::int32_t> seq_lens;       // [B]
  std::vector<std::int64_t> key_start_loc;  // [B+1]
};

/// Latents of all requests, as drawn or dequantised.
struct LatentRows {
  const Tensor& kv_c;
  const Tensor& k_pe;
};

/// `own` are S keys, `extra` B * extra_keys, both of one type. `inputs` has a second cache.
JoinedKeys join_extra_keys(const MlaInputs& inputs, const LatentRows& own, const LatentRows& extra);

}  // namespace attnbench
