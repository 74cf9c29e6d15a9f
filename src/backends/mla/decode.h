// The decode stage of MLA (semantics §8.7, §8.8, §7.7): few query rows over many cached latents, so
// the query moves into the latent space and the cache is read as it is stored, once for all heads.
// Queries are projected, padded and quantised (mla/query.h), attended in one pass or in parts that
// are combined, and the latent output is projected back. Under decode context parallelism every
// rank attends with the heads of all to its own keys, and partial results are exchanged.
//
//   project_query, concat_query      q_nope @ W_UK_T, with q_pe behind it
//   all_gather_query                 several ranks: heads of all
//   quantise_query, pad_query_heads  where the plan or the problem says so
//   attend_decode, combine_decode    the attention, in parts where the plan has some; a plan of
//                                    whole requests leaves nothing to combine
//   the stages of ranks/exchange.h, round_output
//                                    several ranks: partial results, rounded once
//   project_value                    latent output @ W_UV
#pragma once

#include "backends/mla/work.h"

namespace attnbench {

/// Queues the steps for the decodes of a dense plan; they write the first num_decode_tokens rows of
/// MlaWork::output and LSE. The plan has at least one decode. What the ranks computed before the
/// exchange stays readable in MlaWork::partials.
void add_mla_decode(MlaWork& work);

}  // namespace attnbench
