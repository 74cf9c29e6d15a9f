// What the operations that quantise share: heads inside a projection, counters of saturation.
#pragma once

#include <array>
#include <string>

#include "backends/op/op_pipeline.h"

namespace attnbench {

/// Query, key or value heads inside the rows of a projection.
struct HeadRun {
  const char* data = nullptr;
  attn::i64 token_stride = 0;
  attn::i64 head_stride = 0;
  attn::i64 tokens = 0;
  int heads = 0;
  int head_size = 0;
};
/// Those of query, key and value.
std::array<HeadRun, 3> projection_heads(OpPipeline& op);

/// i64 [1] among the outputs, 0 before the run.
void* zeroed_counter(OpPipeline& op, const std::string& name);
/// The counter adds up: it starts from zero in every run.
void queue_reset(OpPipeline& op, void* counter);

}  // namespace attnbench
