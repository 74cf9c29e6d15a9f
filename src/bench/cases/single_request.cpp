// Cuts a request out of problem and inputs, and compares what it gives with its rows of the batch.
// Padding rows behind the last token stay, as NaN: a kernel may not read them here either.
#include "bench/cases/single_request.h"

#include <algorithm>
#include <cmath>
#include <cstring>
#include <limits>
#include <vector>

namespace attnbench {
namespace {

/// Whether `tensor` has rows from `first` on for all of `other`, of the same type and shape.
bool has_rows(const Tensor& tensor, std::int64_t first, const Tensor& other) {
  std::vector<std::int64_t> shape = tensor.shape();
  if (shape.empty() || other.shape().empty() || other.dtype() != tensor.dtype()) return false;
  if (first + other.dim(0) > shape[0]) return false;
  shape[0] = other.dim(0);
  return shape == other.shape();
}

/// The rows, and behind them rows of NaN that may be neither read nor written.
Tensor with_padding(const Tensor& rows, std::int64_t padding) {
  std::vector<std::int64_t> shape = rows.shape();
  shape[0] += padding;
  Tensor result(rows.dtype(), shape);
  std::memset(result.bytes(), 0xFF, result.size_bytes());
  if (rows.size_bytes() > 0) std::memcpy(result.bytes(), rows.bytes(), rows.size_bytes());
  return result;
}

}  // namespace

std::optional<std::int64_t> request_to_repeat(const Problem& problem) {
  std::optional<std::int64_t> last;
  int candidates = 0;
  for (std::size_t b = 0; b < problem.batch.size(); ++b) {
    if (problem.batch[b].query_len == 0 || problem.batch[b].seq_len == 0) continue;
    last = static_cast<std::int64_t>(b);
    ++candidates;
  }
  return candidates > 1 ? last : std::nullopt;
}

Problem problem_of_request(const Problem& problem, std::int64_t request) {
  Problem alone = problem;
  const Request& kept = problem.batch[static_cast<std::size_t>(request)];
  alone.batch = {kept};
  alone.cascade.common_prefix_len = 0;
  alone.cascade.groups.clear();
  const std::int64_t block_size = problem.kv_cache.block_size;
  alone.kv_cache.manager_block_size.reset();
  alone.kv_cache.num_blocks = (kept.seq_len + block_size - 1) / block_size + 1;
  for (std::vector<int>* lengths :
       {&alone.mla.sparse_topk_length, &alone.mla.sparse_extra_topk_length}) {
    if (lengths->size() > 1) *lengths = {lengths->at(static_cast<std::size_t>(request))};
  }
  alone.attention.mm_prefix_ranges.clear();
  const auto ranges = problem.attention.mm_prefix_ranges.find(static_cast<int>(request));
  if (ranges != problem.attention.mm_prefix_ranges.end()) {
    alone.attention.mm_prefix_ranges[0] = ranges->second;
  }
  return alone;
}

AttentionInputs inputs_of_request(const AttentionInputs& inputs, std::int64_t request) {
  AttentionInputs alone = keys_of_request(inputs, request);
  const std::int64_t first_row = inputs.query_start_loc[static_cast<std::size_t>(request)];
  alone.query = with_padding(slice_rows(inputs.query, first_row, alone.num_tokens()),
                             inputs.query.dim(0) - inputs.num_tokens());
  return alone;
}

AttentionInputs keys_of_request(const AttentionInputs& inputs, std::int64_t request) {
  const auto b = static_cast<std::size_t>(request);
  const std::int64_t num_rows = inputs.query_start_loc[b + 1] - inputs.query_start_loc[b];
  const std::int64_t first_key = inputs.key_start_loc[b];
  const std::int64_t num_keys = inputs.seq_lens[b];
  AttentionInputs alone;
  alone.key = slice_rows(inputs.key, first_key, num_keys);
  alone.value = slice_rows(inputs.value, first_key, num_keys);
  alone.query_start_loc = {0, static_cast<std::int32_t>(num_rows)};
  alone.seq_lens = {inputs.seq_lens[b]};
  alone.key_start_loc = {0, num_keys};
  alone.sinks = inputs.sinks;
  alone.alibi_slopes = inputs.alibi_slopes;
  alone.value_channel_scale = inputs.value_channel_scale;
  return alone;
}

BatchInvariance compare_alone(std::int64_t request, const Tensor& in_batch, std::int64_t first_row,
                              const Tensor& alone) {
  BatchInvariance result;
  result.request = request;
  if (!has_rows(in_batch, first_row, alone)) {
    result.max_abs = std::numeric_limits<double>::infinity();
    return result;
  }
  const Tensor rows = slice_rows(in_batch, first_row, alone.dim(0));
  result.equal = std::memcmp(rows.bytes(), alone.bytes(), alone.size_bytes()) == 0;
  if (result.equal) return result;
  for (std::int64_t i = 0; i < alone.num_elements(); ++i) {
    const double difference = std::abs(static_cast<double>(rows.at(i)) - alone.at(i));
    if (difference > result.max_abs) result.max_abs = difference;
  }
  return result;
}

}  // namespace attnbench
