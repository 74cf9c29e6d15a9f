// The lengths of a batch as arrays, where its key rows are drawn from, and whether a case fits.
#pragma once

#include <cstdint>
#include <vector>

#include "core/problem/problem.h"
#include "inputs/draw_rows.h"

namespace attnbench {

struct BatchLengths {
  std::vector<std::int32_t> query_start_loc;  // [B+1]
  std::vector<std::int32_t> seq_lens;         // [B]
  std::vector<std::int64_t> key_start_loc;    // [B+1] exclusive sum of seq_lens
};
/// Errors: E-VALUE for a negative length, E-CAPACITY beyond 32 bits.
BatchLengths batch_lengths(const Problem& problem);

/// Key rows below cascade.common_prefix_len are the same in every request.
std::vector<SourceRow> key_sources(const Problem& problem);

}  // namespace attnbench
