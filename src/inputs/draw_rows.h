// Seeded rows of a tensor by the distribution of a scenario. A row is named by where it is drawn
// from and not by where it goes, so positions that requests share have the same content in each of
// them.
#pragma once

#include <cstdint>
#include <vector>

#include "core/problem/problem.h"
#include "core/tensor.h"
#include "inputs/random.h"

namespace attnbench {

/// Streams of one tensor; those of `prefix` serve the positions that all requests share. `channels`
/// and the two of tokens say which channels and rows the outlier distribution enlarges; channels
/// are the same in all rows, as they are in real models, so there is one stream of them.
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
/// only shapes are wanted. Key rows of a shared prefix (cascade) are the same in every request of
/// its group.
std::vector<SourceRow> key_sources(const Problem& problem);

/// Draws [sources.size(), width] into the first rows of `tensor`: element i of a row is element
/// index * width + i of its stream; see make_inputs() for the outliers.
/// `mean` is added to every element.
/// Rounded to the tensor's type. Rows behind those, such as padding, stay as they are; nothing is
/// drawn where only shapes are wanted.
void fill_rows(const InputsSpec& spec, const TensorStreams& streams,
               const std::vector<SourceRow>& sources, std::int64_t width, Tensor& tensor,
               double mean = 0);

}  // namespace attnbench
