// The paged cache of latents that an MLA step starts from, and its check afterwards. As
// paged_cache.h and check_cache.h, with one entry a position instead of a key and a value for each
// head; the entry is [Lkv + R] elements or a packed struct (PackedEntry in kv_format.h).
#pragma once

#include <string>

#include "core/problem/problem.h"
#include "core/tensor.h"
#include "inputs/mla_inputs.h"

namespace attnbench {

/// A paged cache of latents before the step: context positions written, every other byte poison.
/// Under DCP it is that of every rank of the group, which all use one block table.
struct MlaCache {
  Tensor data;          // [NB, bs, Lkv + R] in the cache's element type, or u8 [NB, bs, 656];
                        // DCP: [W, NB, bs, Lkv + R]
  Tensor block_table;   // i32 [B, MB]; entries past cdiv(seq_len, block_size) are garbage or -1
  Tensor slot_mapping;  // i64 [T + padding]: the new tokens in request order, then negative rows;
                        // DCP: [W, T + padding], -1 where another rank holds the token
  Tensor new_kv_c;      // [T + padding, Lkv] rows to write; padding rows are NaN
  Tensor new_k_pe;      // [T + padding, R]
};

/// Writes an entry of `bytes` to slot `slot` of a block of `block_size`: its last `footer` bytes
/// lie behind what all slots of the block have before them (kv_format.h: footer_bytes()).
void place_entry(const std::byte* entry, std::size_t bytes, std::size_t footer,
                 std::int64_t block_size, std::int64_t slot, std::byte* block);

/// `entries` [S, entry_size]: the entry of every position as a correct write stores it. Pages are
/// handed out as in make_paged_cache(). A byte of poison is 0xFF in packed entries, whose parts are
/// of different types: NaN in each of them. With shapes only, `data` has its size and no content;
/// tables and new rows are whole all the same. Errors: E-CONFIG when kv_cache.num_blocks is too
/// small.
MlaCache make_mla_cache(const Problem& problem, const MlaInputs& inputs, const Tensor& entries);

/// The second cache of a case that has one (semantics §8.9), which no step writes: `entries`
/// [B * extra_keys, entry_size]; the slot mapping has rows of padding only.
MlaCache make_extra_mla_cache(const Problem& problem, const MlaInputs& inputs,
                              const Tensor& entries);

/// `entries` as it was given to make_mla_cache(), `before` what that returned, `after` the cache
/// that the step left, in the same shape (E-SHAPE). Every live position must hold its entry, every
/// other byte be as `before`. Empty, or a sentence naming the first difference (rank, request,
/// position, byte of the entry).
std::string check_mla_cache(const Problem& problem, const Tensor& entries, const MlaCache& before,
                            const Tensor& after);

}  // namespace attnbench
