// Decode context parallelism: which rank holds which token, and how many (semantics §7.1, §7.2).
#pragma once

#include <cstdint>
#include <span>
#include <vector>

namespace attnbench {

struct Problem;

/// Tokens are striped over the ranks of a group in runs of interleave_size.
struct DcpGroup {
  int world_size = 1;       // W
  int interleave_size = 1;  // I

  static DcpGroup of(const Problem& problem);
};

/// W >= 1 and 1 <= I <= block_size with block_size % I == 0, else E-CONFIG.
void check_dcp_group(const DcpGroup& group, int block_size);

/// Rank that holds the token at absolute position p >= 0.
int dcp_rank_of(int64_t position, const DcpGroup& group);
/// Index of that token among its rank's tokens.
int64_t dcp_local_index(int64_t position, const DcpGroup& group);
/// Absolute position of a rank's local_index-th token: the inverse of the two above.
int64_t dcp_global_position(int64_t local_index, int rank, const DcpGroup& group);

/// Tokens of a sequence of seq_len that `rank` holds. E-VALUE for seq_len < 0 or a rank outside
/// [0, W).
int32_t dcp_local_seq_len(int32_t seq_len, int rank, const DcpGroup& group);
/// [B] for one rank.
std::vector<int32_t> dcp_local_seq_lens(std::span<const int32_t> seq_lens, int rank,
                                        const DcpGroup& group);
/// [B, W] row-major, [B, 1] for W = 1.
std::vector<int32_t> dcp_local_seq_lens(std::span<const int32_t> seq_lens, const DcpGroup& group);
/// Upper bound of every rank's local length: ceil(L / (W * I)) * I.
int64_t dcp_max_local_seq_len(int64_t max_seq_len, const DcpGroup& group);

/// Query heads [begin, end) of a rank; H % W != 0 is E-SHAPE.
struct HeadSpan {
  int begin = 0;
  int end = 0;
  bool operator==(const HeadSpan&) const = default;
};
HeadSpan dcp_heads_of_rank(int num_heads, int rank, int world_size);

}  // namespace attnbench
