// The window of a decode-context group: which of a rank's keys each token of a step sees. No kernel
// knows of other ranks, so what a token sees is given as a request of its own, with a page table
// and a window over local keys.
#pragma once

#include <cstdint>
#include <vector>

#include "core/problem/problem.h"
#include "core/tensor.h"

namespace attnbench {

/// Tokens [first, first + count), each as a request of its own, that see the same number of keys
/// before their last one.
struct WindowSlice {
  int first = 0;
  int count = 0;
  int window_left = 0;
};

/// What the tokens of a step see of a rank's context under a window. It ends, for a request, at the
/// same local key for all of its tokens, and begins at another one for each, by global positions:
/// so every token is a request of its own, whose keys begin with the page that its window begins
/// in, and what it does not see of that page is a window over the local keys.
struct WindowRows {
  std::vector<int> query_start_loc;  // [T+1]
  std::vector<int> seq_lens;         // [T] local keys from that page on; 0 = none is seen
  std::vector<int> positions;        // [T] of the token in its request
  std::vector<int> first_keys;       // [T] index on the rank of that page's first key
  std::vector<int> block_table;      // [T, columns] from that page on
  std::int64_t columns = 0;
  std::vector<WindowSlice> slices;  // neighbours, which one call takes
};

/// Of `rank`, for a window of `left` keys before a token; `table` i32 [B, pages] is the block table
/// of the rank's cache. The keys of this step are no part of it: every rank has them apart
/// (semantics §7.6). Errors: E-CAPACITY of checked_int32().
WindowRows window_rows(const Problem& problem, int rank, int left, const Tensor& table);

}  // namespace attnbench
