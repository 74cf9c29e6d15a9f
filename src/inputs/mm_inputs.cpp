// Inputs of the multimodal encoder: those of make_inputs() with the lengths in the form of its
// wrappers, and the steps that a dynamic scale looked at before the measured one.
#include "inputs/mm_inputs.h"

#include <algorithm>
#include <cstring>
#include <limits>

#include "core/error.h"
#include "inputs/random.h"

namespace attnbench {
namespace {

constexpr std::int64_t kInterleavedParts = 3;

}  // namespace

MmInputs make_mm_inputs(const Problem& problem) {
  MmInputs inputs{make_inputs(problem), std::nullopt};
  if (!problem.mm_encoder.batch_size) inputs.cu_seqlens = inputs.tensors.query_start_loc;
  return inputs;
}

AttentionInputs make_mm_observation(const Problem& problem, std::size_t layer, int step) {
  Problem observed = problem;
  observed.inputs.seed = observation_seed(problem.inputs.seed, layer, step);
  return make_inputs(observed);
}

std::int64_t mm_query_unit(const Problem& problem) {
  return problem.mm_encoder.hidden_size / problem.mm_encoder.tp_size;
}

InterleavedValue interleave_value(const Problem& problem, const AttentionInputs& inputs) {
  const std::int64_t unit = mm_query_unit(problem);
  const Tensor& value = inputs.value;
  const std::int64_t width = value.dim(1) * value.dim(2);
  InterleavedValue result;
  result.token_stride = kInterleavedParts * unit;
  if (width > result.token_stride) {
    fail(ErrorKind::kConfig,
         "mm_encoder.hidden_size: expected rows of 3 * hidden_size / tp_size = {} elements to hold "
         "{} of V, got fewer",
         result.token_stride, width);
  }
  // V stands behind Q and K; where it is wider than their share (a rank of tp_size was given all
  // heads) it ends with the row.
  result.first = std::min(2 * unit, result.token_stride - width);
  result.rows = Tensor(value.dtype(), {value.dim(0), result.token_stride});
  // Why 0xFF: it reads as NaN in every float format.
  std::fill_n(result.rows.bytes(), result.rows.size_bytes(), std::byte{0xFF});
  const std::size_t size = dtype_size(value.dtype());
  for (std::int64_t row = 0; row < value.dim(0); ++row) {
    const auto to = static_cast<std::size_t>(row * result.token_stride + result.first) * size;
    const auto from = static_cast<std::size_t>(row * width) * size;
    std::memcpy(result.rows.bytes() + to, value.bytes() + from,
                static_cast<std::size_t>(width) * size);
  }
  return result;
}

}  // namespace attnbench
