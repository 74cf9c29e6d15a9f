// What an MLA backend can do, as data, and its reasons against a problem (semantics §13.3). The
// backends differ only in this: one pipeline (mla/pipeline.h) serves all of them and reads it, and
// so do whoever judges or times a case, who must see the same splits and the same stored cache.
#pragma once

#include <string>
#include <vector>

#include "backends/backend.h"
#include "metadata/batch.h"
#include "metadata/blocks.h"

namespace attnbench {

/// How a backend cuts the keys of its decodes.
enum class MlaDecodeSplit { kSplits, kPlan };

struct MlaCapability {
  std::string name;
  std::vector<Dtype> dtypes;
  std::vector<KvCacheDtype> kv_dtypes;
  std::vector<int> entry_sizes;  // empty = any
  std::vector<BlockSizeRule> block_sizes{{16, true}};
  int min_sm = 0;
  int max_sm = 1 << 30;
  bool sparse = false;
  /// Sparse: sinks, lists with a length, and a second cache with lists of its own (§8.9).
  bool sparse_operands = false;
  bool fp8_query = false;  // an fp8 cache is read with an e4m3 query
  int max_heads = 1 << 30;
  std::string too_many_heads = {};  // the words for more, "{}" for their number
  int head_tile = 1;                // heads of a sparse query are padded to a multiple of it
  int q_pad_num_heads = 0;          // decodes have at least so many, zeros behind the real ones
  std::vector<int> nope_head_dims = {};  // empty = any
  /// A user's kernel: every request is attended over the latents, prefills as well.
  bool latent_only = false;
  MetadataBuilder builder = MetadataBuilder::kMlaSingleOnly;
  MlaDecodeSplit split = MlaDecodeSplit::kSplits;
};

/// Every reason against the problem, in the order and words of §13; empty = supported.
std::vector<std::string> mla_refusals(const MlaCapability& capability, const Problem& problem,
                                      const DeviceFacts& device);

/// The capability of MLA, the backend with the fewest limits.
const MlaCapability& plain_mla_capability();

/// The cache dtype that the backend stores: "fp8" is the packed one where it has no fp8_e4m3, as in
/// FLASHMLA_SPARSE.
KvCacheDtype mla_cache_dtype(const MlaCapability& capability, const Problem& problem);

}  // namespace attnbench
