// Single operations on caches (semantics §5, §8.4, §12): writes of new keys and values or latents,
// the rotation of queries and keys by itself or fused with a write, gathers out of a cache of
// latents.
//
// Each function takes an empty OpPipeline, declares the operands that it reads and the outputs that
// it writes (under the names that inputs and saved results have), and queues the step that is
// timed. A cache is an output that starts as the case drew it, so that a write next to its slot
// shows.
#pragma once

#include <vector>

#include "backends/op/pipeline.h"

namespace attnbench {

/// reshape_and_cache: new_key and new_value, or their int8 codes and scales, into "kv_cache" by the
/// slot mapping. Under decode context parallelism one write a rank, each into its part.
void queue_cache_write(OpPipeline& op);
/// The same of latents: new_kv_c and new_k_pe into entries of the problem's cache type. There is
/// one scale, k_scale, for all of an entry; packed entries make their own.
void queue_mla_cache_write(OpPipeline& op);

/// The query and key heads of a projection [T, H + 2 Hk, D] rotated by the positions' rows of the
/// table; with `writes`, keys and values go into the cache in the same operation. The rotation
/// works in place, so every run copies the projection anew in a step beside the timed one.
void queue_rope(OpPipeline& op, bool writes);
/// The same of MLA's query [T, N, P + R], whose last R elements of a head turn, and k_pe [T, R].
void queue_mla_rope(OpPipeline& op, bool writes);

/// Latents of the requests side by side, [T, entry]: as they are stored (op.raw), dequantised, or
/// upconverted from packed entries.
/// Lengths and the first row of each request come with the case, as its chunk plan has them.
void queue_gather(OpPipeline& op);

/// The scales of a cache as its write takes them, one a KV head: `scale` has one for all heads or
/// one for each.
std::vector<float> scale_of_heads(const std::vector<double>& scale, int num_kv_heads);

}  // namespace attnbench
