// Seeded rows of a tensor by the distribution of a scenario. Rows are named by where they come from
// and not by where they go, so that positions which requests share have the same content in each of
// them, and a row keeps its content when requests before it change nothing about its index.
#pragma once

#include <cstdint>
#include <vector>

#include "core/problem/problem.h"
#include "core/tensor.h"
#include "inputs/random.h"

namespace attnbench {

/// Streams of one tensor; those of `prefix` serve the positions that all requests share.
struct TensorStreams {
  StreamId body, prefix;
  StreamId channels;
  StreamId body_tokens, prefix_tokens;
};

/// Where a row of a tensor is drawn from: row `index` of the tensor's own stream, or of the stream
/// that all requests share.
struct SourceRow {
  bool shared = false;
  std::int64_t index = 0;
};

/// Sources of the key rows [S] in request order; the same serve for values and latents. Empty where
/// only shapes are wanted. Key rows below cascade.common_prefix_len are the same in every request.
std::vector<SourceRow> key_sources(const Problem& problem);

/// Draws [sources.size(), width] into the first rows of `tensor`: element i of a row is element
/// index * width + i of its stream; see make_inputs() for the outliers.
void fill_rows(const InputsSpec& spec, const TensorStreams& streams,
               const std::vector<SourceRow>& sources, std::int64_t width, Tensor& tensor);

}  // namespace attnbench
