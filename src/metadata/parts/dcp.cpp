// Striping of tokens over ranks: token p lies in run p / I, run r on rank r % W. Everything else
// follows from these two divisions.
#include "metadata/parts/dcp.h"

#include <algorithm>

#include "core/error.h"
#include "core/problem/problem.h"
#include "metadata/int_math.h"

namespace attnbench {
namespace {

int64_t stripe(const DcpGroup& group) { return int64_t{group.world_size} * group.interleave_size; }

void check_rank(int rank, int world_size) {
  if (rank < 0 || rank >= world_size) {
    fail(ErrorKind::kValue, "dcp rank: expected a rank in [0, {}), got {}", world_size, rank);
  }
}

}  // namespace

DcpGroup DcpGroup::of(const Problem& problem) {
  return {problem.dcp.world_size, problem.dcp.interleave_size};
}

void check_dcp_group(const DcpGroup& group, int block_size) {
  if (group.world_size < 1) {
    fail(ErrorKind::kConfig, "dcp world_size: expected at least 1, got {}", group.world_size);
  }
  const int interleave = group.interleave_size;
  if (interleave < 1 || interleave > block_size || block_size % interleave != 0) {
    fail(ErrorKind::kConfig, "dcp interleave_size: expected a divisor of block_size {}, got {}",
         block_size, interleave);
  }
}

int dcp_rank_of(int64_t position, const DcpGroup& group) {
  return static_cast<int>(position / group.interleave_size % group.world_size);
}

int64_t dcp_local_index(int64_t position, const DcpGroup& group) {
  return position / stripe(group) * group.interleave_size + position % group.interleave_size;
}

int64_t dcp_global_position(int64_t local_index, int rank, const DcpGroup& group) {
  const int64_t interleave = group.interleave_size;
  return local_index / interleave * stripe(group) + rank * interleave + local_index % interleave;
}

int32_t dcp_local_seq_len(int32_t seq_len, int rank, const DcpGroup& group) {
  if (seq_len < 0) fail(ErrorKind::kValue, "seq_len: expected >= 0, got {}", seq_len);
  check_rank(rank, group.world_size);
  const int64_t interleave = group.interleave_size;
  const int64_t base = seq_len / stripe(group) * interleave;
  const int64_t remainder = seq_len - base * group.world_size;
  const int64_t extra = std::clamp<int64_t>(remainder - rank * interleave, 0, interleave);
  return static_cast<int32_t>(base + extra);
}

std::vector<int32_t> dcp_local_seq_lens(std::span<const int32_t> seq_lens, int rank,
                                        const DcpGroup& group) {
  std::vector<int32_t> local;
  local.reserve(seq_lens.size());
  for (const int32_t seq_len : seq_lens) local.push_back(dcp_local_seq_len(seq_len, rank, group));
  return local;
}

std::vector<int32_t> dcp_local_seq_lens(std::span<const int32_t> seq_lens, const DcpGroup& group) {
  std::vector<int32_t> local;
  local.reserve(seq_lens.size() * static_cast<size_t>(group.world_size));
  for (const int32_t seq_len : seq_lens) {
    for (int rank = 0; rank < group.world_size; ++rank) {
      local.push_back(dcp_local_seq_len(seq_len, rank, group));
    }
  }
  return local;
}

int64_t dcp_max_local_seq_len(int64_t max_seq_len, const DcpGroup& group) {
  return ceil_div(max_seq_len, stripe(group)) * group.interleave_size;
}

HeadSpan dcp_heads_of_rank(int num_heads, int rank, int world_size) {
  if (world_size < 1 || num_heads % world_size != 0) {
    fail(ErrorKind::kShape, "num_heads: expected a multiple of dcp world_size {}, got {}",
         world_size, num_heads);
  }
  check_rank(rank, world_size);
  const int heads = num_heads / world_size;
  return {rank * heads, (rank + 1) * heads};
}

}  // namespace attnbench
