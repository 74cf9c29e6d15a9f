// Single operations that quantise what attention reads: queries, keys and values of a projection,
// the latent query of MLA, and the encoder's Q, K and V (semantics §8.7, §10.5, §10.6, §11.2).
// Static e4m3 scales saturate what does not fit; of queries the number is an output.
#pragma once

#include <array>
#include <string>

#include "backends/op/pipeline.h"

namespace attnbench {

/// The query to e4m3 with one static scale; at an int8 level, queries and keys to codes with a
/// scale a token and head, and values with one a channel; for MLA, cat(ql_nope, q_pe) to e4m3.
void queue_quantize(OpPipeline& op);

/// Q, K and V of the multimodal encoder to e4m3, heads padded to a multiple of 16. The scales are
/// those of the file's first layer, or come from the largest values of these very tensors: the
/// timed step finds them too then. Errors: as read_mm_scales.
void queue_mm_quant(OpPipeline& op);

/// Query, key or value heads inside the rows of a projection.
struct ProjectionHeads {
  const char* data = nullptr;
  attn::i64 token_stride = 0;
  attn::i64 head_stride = 0;
  attn::i64 tokens = 0;
  int heads = 0;
  int head_size = 0;
};
/// Those of query, key and value.
std::array<ProjectionHeads, 3> projection_heads(OpPipeline& op);

/// i64 [1] among the outputs, 0 before the run.
void* zeroed_counter(OpPipeline& op, const std::string& name);
/// The counter adds up: it starts from zero in every run, by a step beside the timed one, as poison
/// is no number to start from.
void queue_reset(OpPipeline& op, void* counter);

}  // namespace attnbench
