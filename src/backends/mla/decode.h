// The decode stage of MLA (semantics §8.7, §8.8, §7.7): few query rows over many cached latents, so
// the query moves into the latent space and the cache is read as it is stored, once for all heads.
// Queries are projected, padded and quantised (mla/query.h), attended in one pass or in parts that
// are combined, and the latent output is projected back. Under decode context parallelism every
// rank attends with the heads of all to its own keys, and partial results are exchanged.
#pragma once

#include "backends/mla/work.h"

namespace attnbench {

/// Queues the steps for the decodes of a dense plan; they write the first num_decode_tokens rows of
/// MlaWork::output and LSE. The plan has at least one decode. What the ranks computed before the
/// exchange stays readable in MlaWork::partials.
void add_mla_decode(MlaWork& work);

}  // namespace attnbench
