// The keys that the sparse indexer chooses (semantics §8.10), a token at a time. Order among the
// chosen means nothing to attention; ascending positions make the bytes of the list one.
#include <algorithm>
#include <cmath>
#include <limits>
#include <numeric>
#include <vector>

#include "kernels/params_indexer.h"
#include "ops/cpu/cpu_ops.h"

namespace attnbench::cpu {
namespace {

float comparable(float logit) {
  return std::isnan(logit) ? -std::numeric_limits<float>::infinity() : logit;
}

/// The slot of a position of a request, or its row of the workspace.
int slot_of(const attn::IndexTopkParams& p, int request, int position) {
  if (p.workspace_starts != nullptr && p.workspace_starts[request] >= 0) {
    return p.workspace_starts[request] + position;
  }
  const int block = p.block_table[request * p.block_table_stride + position / p.block_size];
  return block < 0 ? -1 : block * p.block_size + position % p.block_size;
}

void choose(const attn::IndexTopkParams& p, std::int64_t t) {
  const int request = static_cast<int>(
      std::upper_bound(p.query_start_loc, p.query_start_loc + p.num_requests + 1, t) -
      p.query_start_loc - 1);
  const int query_len = p.query_start_loc[request + 1] - p.query_start_loc[request];
  const int first_position = p.seq_lens[request] - query_len;
  const int seen =
      std::max(0, first_position + static_cast<int>(t) - p.query_start_loc[request] + 1);
  const float* logits = p.logits + t * p.logits_stride;
  std::vector<int> positions(static_cast<std::size_t>(seen));
  std::iota(positions.begin(), positions.end(), 0);
  const int count = std::min(p.topk, seen);
  if (count < seen) {
    std::nth_element(positions.begin(), positions.begin() + count, positions.end(),
                     [&](int a, int b) {
                       const float x = comparable(logits[a]), y = comparable(logits[b]);
                       return x > y || (x == y && a < b);
                     });
  }
  std::sort(positions.begin(), positions.begin() + count);
  for (int k = 0; k < p.topk; ++k) {
    const int position = k < count ? positions[static_cast<std::size_t>(k)] : -1;
    if (p.indices != nullptr) p.indices[t * p.topk + k] = position;
    if (p.slots != nullptr) {
      p.slots[t * p.topk + k] = position < 0 ? -1 : slot_of(p, request, position);
    }
  }
}

}  // namespace

void index_topk(const attn::IndexTopkParams& params, Workers& workers) {
  workers.pool.parallel_for(params.num_tokens,
                            [&](std::int64_t token, int) { choose(params, token); });
}

}  // namespace attnbench::cpu
