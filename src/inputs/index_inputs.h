// Queries, weights and keys of the indexer of sparse MLA (semantics §8.10), and the keys that it
// has to choose.
//
// Which keys are chosen must not depend on the order of a sum, or two right kernels would attend to
// different keys and no limit would fit the difference. So in a case of attention everything is a
// small integer or a quarter of one: products and sums are exact in float32 in any order, the keys
// are their own e4m3 codes at a power of two, and equal logits, which are common, are equal in
// every kernel. What rounding does to logits is for the operation alone (op.name index_logits),
// whose inputs are drawn like others.
#pragma once

#include "core/problem/problem.h"
#include "core/tensor.h"

namespace attnbench {

/// H = mla.index_n_heads, T = new tokens, S = sum of seq_lens.
struct IndexInputs {
  Tensor query;    // e4m3 [T, H, 128]
  Tensor weights;  // f32 [T, H]
  Tensor keys;     // attention.dtype [S, 128], position order, requests concatenated
};

/// Whether the step chooses its keys itself.
inline bool has_indexer(const Problem& problem) {
  return problem.mla.sparse_topk && problem.mla.sparse_indices == SparseIndices::kIndexer;
}

/// Integers from -3 to 3 as queries and keys, quarters from -1 to 2 as weights. Rows of a prefix
/// that requests share are the same in each. With shapes only, the tensors have no content.
IndexInputs make_exact_index_inputs(const Problem& problem);

/// Normal queries and weights and, by the distribution of the case, keys: for operations.
IndexInputs make_drawn_index_inputs(const Problem& problem);

/// i32 [T, mla.sparse_topk]: the positions that the indexer chooses for every token of exact
/// inputs, ascending, then -1. Of equal logits the first positions.
Tensor choose_index_keys(const Problem& problem, const IndexInputs& inputs);

}  // namespace attnbench
