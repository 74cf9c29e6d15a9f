// Both ends of attention over latents: the query projected into the latent space, padded and
// quantised, and the latent output projected back (semantics §8.7). Decodes, listed keys and users'
// kernels have the same ends and differ in what is between them.
//
// Each function queues steps and gives back where the result will be on the device; with several
// ranks, one result for each rank's own heads. The projections are shown beside the time of the
// attention and are not part of it, as they are the same for every backend.
#pragma once

#include <vector>

#include "backends/mla/work.h"

namespace attnbench {

/// The query of the first `tokens` rows as the attention of one rank takes it: [tokens,
/// padded_heads, Lkv + R], with heads of zeros behind the real ones.
struct LatentQuery {
  const void* data = nullptr;
  attn::Element element{};  // e4m3 by q_scale, which may be made by an earlier step, if quantised
};
/// Whose kernel reads the query. A user's relies on the order of the stream, so it never starts
/// before the query is there; and as its query is checked by running the steps once more, they do
/// not write the cache.
enum class QueryReader { kOurs, kUsers };
/// Steps project_query, concat_query, quantise_query and pad_query_heads, the last two where they
/// are needed. They are one step project_query where the device has a kernel for that and
/// mla.fused_steps allows it; that takes the place of write_cache, too, if the reader is ours and
/// that is the last step so far.
LatentQuery add_joined_query(MlaWork& work, attn::i64 tokens, bool is_quantised,
                             attn::i64 padded_heads, QueryReader reader = QueryReader::kOurs);

/// For ranks, which exchange their heads in between. Steps project_query and concat_query of the
/// first `tokens` rows: [tokens, h, Lkv + R] of every rank's own heads.
std::vector<const void*> add_latent_query(MlaWork& work, attn::i64 tokens);
/// Step pad_query_heads: each [tokens, N, Lkv + R] becomes [tokens, padded_heads, Lkv + R];
/// unchanged when there are no heads to add.
std::vector<const void*> add_padded_heads(MlaWork& work, const std::vector<const void*>& queries,
                                          attn::i64 tokens, attn::i64 padded_heads);

/// Latent output of a rank's own heads, [tokens, h, Lkv] in the activation type, rounded once by
/// whoever made it. Heads of padding behind them are skipped by the stride.
struct LatentOutput {
  const void* data = nullptr;
  attn::i64 token_stride = 0;
};
/// Step project_value: o = o_l @ W_UV of each head, into the first `tokens` rows of the output.
void add_value_projection(MlaWork& work, const std::vector<LatentOutput>& outputs,
                          attn::i64 tokens);

}  // namespace attnbench
