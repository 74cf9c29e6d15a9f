// MLA as the kernels compute it - context in chunks, keys in splits, tokens on ranks - in f64: each
// must equal the direct form of mla_reference.h to 1e-12 (semantics §15.4).
//
// These are not what backends are judged by. They show that the definitions of chunk plans, decode
// plans and DCP compose to plain attention, and give the partial result of a rank, which has no
// direct form, to compare a backend's partial results with.
#pragma once

#include <cstdint>
#include <optional>
#include <span>

#include "metadata/parts/dcp.h"
#include "reference/attention.h"
#include "reference/mla/inputs.h"

namespace attnbench {

struct MlaChunking {
  std::int64_t workspace_tokens = 0;  // Wk
  int block_size = 16;
  DcpGroup group;  // simulated: every rank's share of the context is gathered and reordered
};

/// §8.6 of `rows`, all prefill: new tokens causal, context in the chunks of plan_mla_chunks and
/// non-causal, merged. Padded rows of a rank hold NaN.
std::optional<ReferenceOutput> mla_chunked_prefill(const MlaReferenceInputs& inputs,
                                                   std::span<const std::int32_t> rows,
                                                   const MlaChunking& chunking,
                                                   const ReferenceOptions& options = {});

/// §8.7 of `rows`, all decode and not sparse, with the keys dealt out by plan_decode and the splits
/// combined by their LSE (§8.8).
std::optional<ReferenceOutput> mla_split_decode(const MlaReferenceInputs& inputs,
                                                std::span<const std::int32_t> rows, int num_parts,
                                                int fixed_overhead,
                                                const ReferenceOptions& options = {});

/// §7.7 of `rows`, all decode and not sparse: every rank attends with all heads to its own tokens,
/// the partials are combined (§7.3) and each rank projects its own heads. E-CONFIG for requests of
/// several query tokens with interleave_size > 1.
std::optional<ReferenceOutput> mla_dcp_decode(const MlaReferenceInputs& inputs,
                                              std::span<const std::int32_t> rows,
                                              const DcpGroup& group,
                                              const ReferenceOptions& options = {});

/// What one rank computes before the exchange: the latent output [rows, N, Lkv] and the LSE of all
/// heads over the rank's own keys.
std::optional<ReferenceOutput> mla_rank_partial(const MlaReferenceInputs& inputs,
                                                std::span<const std::int32_t> rows,
                                                const DcpGroup& group, int rank,
                                                const ReferenceOptions& options = {});
/// The same in storage precision.
std::optional<ReferenceOutput> emulate_mla_rank(const MlaReferenceInputs& inputs,
                                                const EmulationRule& rule,
                                                std::span<const std::int32_t> rows,
                                                const DcpGroup& group, int rank,
                                                const ReferenceOptions& options = {});

}  // namespace attnbench
