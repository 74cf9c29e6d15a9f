// What the MLA backends have in common: limits, the plan of a batch, the pipeline over Ops
// (semantics §8, §13.3).
#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "backends/backend.h"
#include "metadata/batch.h"
#include "metadata/blocks.h"
#include "metadata/mla/prefill.h"
#include "ops/ops.h"

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
  bool fp8_query = false;  // an fp8 cache is read with an e4m3 query
  /// A user's kernel: every request is attended over the latents, prefills as well.
  bool latent_only = false;
  MetadataBuilder builder = MetadataBuilder::kMlaSingleOnly;
  MlaDecodeSplit split = MlaDecodeSplit::kSplits;
};

/// Every reason against the problem, in the order and words of §13; empty = supported.
std::vector<std::string> mla_refusals(const MlaCapability& capability, const Problem& problem,
                                      const DeviceFacts& device);

/// What the pipeline of a problem does; bench judges by the same plan.
struct MlaPlan {
  BatchSplit batch;  // sparse: every request is a decode
  /// Sparse with an fp8_ds_mla cache: who reads the entries, and who an upconverted copy (§8.9).
  BatchSplit sparse_batch;
  bool quantised_query = false;  // of the decodes
  bool pad_v = false;
  bool fp8_prefill = false;  // emulated (§8.6): prefills attend in e4m3
  std::int64_t workspace_tokens = 0;
  std::optional<MlaChunkPlan> chunks;  // context of the prefills
  /// Parts of a decode plan, or splits of every decode; 1 = one pass.
  int num_parts = 1;
};
/// Only num_parts depends on the device, of `num_sms` multiprocessors.
MlaPlan plan_mla(const MlaCapability& capability, const Problem& problem,
                 int num_sms = kAssumedNumSms);

/// Whether lists and cache of the problem allow an e4m3 query: of a dense problem over e4m3 entries
/// with one scale.
bool allows_quantised_query(const MlaCapability& capability, const Problem& problem);
/// Whether decodes of the batch, if there are any, have an e4m3 query over e4m3 entries: what the
/// rate of the matrix units is chosen by.
bool has_fp8_decodes(const MlaCapability& capability, const Problem& problem);

/// The capability of MLA, the backend with the fewest limits.
const MlaCapability& plain_mla_capability();
/// What REFERENCE computes: the same, with or without lists of keys.
MlaCapability mla_reference_capability(const Problem& problem);
/// Which requests are decodes.
BatchSplit split_mla_batch(const MlaCapability& capability, const Problem& problem);

/// The cache dtype that the backend stores: "fp8" is the packed one where it has no fp8_e4m3, as in
/// FLASHMLA_SPARSE.
KvCacheDtype mla_cache_dtype(const MlaCapability& capability, const Problem& problem);

/// What has no meaning for MLA, whoever computes it.
std::vector<std::string> mla_reference_refusals(const Problem& problem);
/// The float64 reference as a pipeline of one step over all rows.
std::unique_ptr<Pipeline> make_mla_reference_pipeline(const Problem& problem,
                                                      const BackendInputs& inputs);

std::unique_ptr<Pipeline> make_mla_pipeline(const MlaCapability& capability, const Problem& problem,
                                            const BackendInputs& inputs, Ops& ops);

/// FLOPs and traffic of the attention proper as it is computed: decodes over the latents
/// (2*N*(2*Lkv+R) a pair; entries, latent query and output), prefills over expanded heads
/// (2*N*(P+R+V) a pair; K, V, query and output). Sparse: the listed keys, as they are drawn.
double mla_flops(const Problem& problem, const MlaCapability& capability);
Traffic mla_traffic(const Problem& problem, const MlaCapability& capability);

}  // namespace attnbench
