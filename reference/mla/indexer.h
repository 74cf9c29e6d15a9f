// The indexer of sparse MLA straight from its definition (semantics §8.10), in float64: logits of
// keys as their cache holds them, and the verdict on a list of chosen keys.
#pragma once

#include <cstdint>
#include <span>
#include <string>
#include <vector>

#include "core/problem/problem.h"
#include "core/tensor.h"

namespace attnbench {

/// A block of the cache holds the codes of its keys one after the other, and behind all of them
/// their scales, float32 each. What an index cache [NB, block_size * 132] must hold: key `row` of
/// `keys` [S, 128] at `slot`, as quantise_index_key() makes it.
void store_index_key(const Tensor& keys, std::int64_t row, bool ue8m0, std::int64_t block_size,
                     std::int64_t slot, Tensor& cache);

/// Logits of the keys that a token sees, from the first to its own position.
struct IndexRow {
  const Tensor& query;                   // e4m3 [T, H, 128]
  const Tensor& weights;                 // f32 [T, H]
  const Tensor& cache;                   // u8 [NB, block_size * 132]
  std::span<const std::int32_t> blocks;  // of the request
  std::int64_t block_size = 0;
  std::int64_t token = 0;
  std::int64_t visible = 0;
};
std::vector<double> index_logits_of(const IndexRow& row);

/// Why `slots` [topk] are not those of the `topk` largest of `logits`, or empty. Any order, and any
/// choice among logits that are no further apart than `rounding`, is right; -1 fills what is left.
/// `blocks` and `block_size` say which positions the slots are of.
std::string wrong_choice(std::span<const float> logits, std::span<const std::int32_t> slots,
                         std::span<const std::int32_t> blocks, std::int64_t block_size,
                         double rounding);

}  // namespace attnbench
