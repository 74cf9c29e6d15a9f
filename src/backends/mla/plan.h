// What an MLA backend does with a batch, decided before anything is allocated: which requests are
// decodes over latents and which prefills over expanded heads, chunks of the context, parts of a
// decode, and what all of it costs (semantics §8.6 to §8.9). Pipeline, explain() and the judge go
// by the same plan.
#pragma once

#include <cstdint>
#include <optional>

#include "backends/mla/capability.h"
#include "backends/traffic.h"
#include "metadata/batch.h"
#include "metadata/mla/prefill.h"

namespace attnbench {

/// Which requests are decodes.
BatchSplit split_mla_batch(const MlaCapability& capability, const Problem& problem);

/// What the pipeline of a problem does; bench judges by the same plan.
struct MlaPlan {
  BatchSplit batch;  // sparse: every request is a decode
  /// Sparse: decodes are whose lists a plan deals out; with an fp8_ds_mla cache prefills read an
  /// upconverted copy of the entries (§8.9), else they are in one step with nothing planned.
  BatchSplit sparse_batch;
  bool quantised_query = false;  // of the decodes
  bool pad_v = false;
  bool fp8_prefill = false;  // §8.6: prefills attend in e4m3
  std::int64_t workspace_tokens = 0;
  std::optional<MlaChunkPlan> chunks;  // context of the prefills
  /// Parts of a decode plan, or splits of every decode; 1 = one pass.
  int num_parts = 1;
};
/// num_parts depends on the device's `num_sms` multiprocessors, pad_v on its compute capability
/// `sm`.
MlaPlan plan_mla(const MlaCapability& capability, const Problem& problem,
                 int num_sms = kAssumedNumSms, int sm = kAssumedSm);

/// Heads that queries of decodes have, zeros behind the real ones: mla.q_pad_num_heads, or what the
/// backend pads to by itself.
int mla_padded_heads(const MlaCapability& capability, const Problem& problem);

/// Whether lists and cache of the problem allow an e4m3 query: entries of e4m3 with one scale, and
/// for users' kernels no lists.
bool allows_quantised_query(const MlaCapability& capability, const Problem& problem);
/// Whether decodes of the batch, if there are any, have an e4m3 query over e4m3 entries: what the
/// rate of the matrix units is chosen by.
bool has_fp8_decodes(const MlaCapability& capability, const Problem& problem);

/// FLOPs and traffic of the attention proper as it is computed: decodes over the latents
/// (2*N*(2*Lkv+R) a pair; entries, latent query and output), prefills over expanded heads
/// (2*N*(P+R+V) a pair; K, V, query and output; k_pe as often as there are heads, wherever it
/// lies). Sparse: the listed keys, as they are drawn.
double mla_flops(const Problem& problem, const MlaCapability& capability);
Traffic mla_traffic(const Problem& problem, const MlaCapability& capability);

}  // namespace attnbench
