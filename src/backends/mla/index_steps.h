// The indexer of sparse MLA in front of its attention (semantics §8.10): the step writes the index
// keys of its new tokens, computes logits and chooses the keys that attention then reads.
//
// The cache of index keys lies in the pages of the block table of the latents. Its context is in
// place before the step, made by the reference's quantise_index_key(); slots without a key hold
// poison. Queries, weights and new keys come as an engine has them in front of these kernels: the
// projections that make them, their rotation and the query's quantisation are not part of the case.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "backends/mla/work.h"

namespace attnbench {

class MlaIndexer {
 public:
  /// Of a problem whose mla.sparse.indices are those of the indexer. `work` must outlive it.
  explicit MlaIndexer(MlaWork& work) : work_(work) {}

  /// Queues write, logits and choice, which are beside the median. The slots [T, topk] that they
  /// leave on the device; requests with a place in a workspace (>= 0, [B]) get its rows instead.
  const int* add_steps(const std::vector<std::int32_t>& workspace_starts);

  /// Where the chosen keys of a run are not those of the definition, in words; else empty. Reads
  /// from the device: after Ops::synchronize().
  std::string wrong_choice(const std::vector<std::int32_t>& workspace_starts);

 private:
  void add_write();
  void add_logits();
  Tensor context_cache() const;

  MlaWork& work_;
  unsigned char* cache_ = nullptr;
  float* logits_ = nullptr;
  int* slots_ = nullptr;
  const int* query_start_loc_ = nullptr;
  const int* seq_lens_ = nullptr;
};

}  // namespace attnbench
