// Attention with one pass over the keys of each row, and split-KV decoding: each split attends to
// its own run of keys, then the parts are combined by their LSE.
//
// The unit of work is a block of rows, with splits a block and a split; each is computed by one
// thread from beginning to end. So no sum depends on the number of threads.
#include <algorithm>
#include <cmath>

#include "ops/cpu/attention/attend_block.h"
#include "ops/cpu/cpu_ops.h"

namespace attnbench::cpu {
namespace {

/// Whole tiles for every split, as kSplitTile says; splits beyond the keys are empty.
KeyRun keys_of_split(std::int64_t seq_len, int num_splits, int split) {
  const std::int64_t tiles = (seq_len + attn::kSplitTile - 1) / attn::kSplitTile;
  const std::int64_t tiles_per_split = (tiles + num_splits - 1) / num_splits;
  const std::int64_t begin = split * tiles_per_split * attn::kSplitTile;
  return {std::min(begin, seq_len), std::min(begin + tiles_per_split * attn::kSplitTile, seq_len)};
}

/// Index of (split, token, head) in rows of the partial output; the partial LSE swaps the last two.
std::int64_t partial_row(const attn::AttendParams& params, const attn::SplitParams& split, int part,
                         const RowPlace& place) {
  return (part * split.num_tokens + place.token) * params.num_heads + place.head;
}
float& partial_lse(const attn::AttendParams& params, const attn::SplitParams& split, int part,
                   const RowPlace& place) {
  const std::int64_t row = std::int64_t{part} * params.num_heads + place.head;
  return split.partial_lse[row * split.num_tokens + place.token];
}

/// Weights by e^(LSE of the part - largest LSE), normalised at the end: the weights of parts that
/// saw keys cannot all underflow, and a part without keys is never read.
void combine_row(const attn::AttendParams& params, const attn::SplitParams& split,
                 const RowPlace& place, float* values) {
  float maximum = kNegInf;
  for (int part = 0; part < split.num_splits; ++part) {
    const float lse = partial_lse(params, split, part, place);
    // The negated test lets a NaN through, so that it is seen in the result.
    if (!(lse <= maximum)) maximum = lse;
  }
  std::fill_n(values, params.v_head_size, 0.0f);
  float total = 0.0f;
  for (int part = 0; part < split.num_splits; ++part) {
    const float lse = partial_lse(params, split, part, place);
    if (lse == kNegInf) continue;  // an empty part; also keeps -inf - -inf out of the exponent
    const float weight = lse == maximum ? 1.0f : std::exp(lse - maximum);
    if (weight == 0.0f) continue;
    const float* source =
        split.partial_output + partial_row(params, split, part, place) * params.v_head_size;
    total += weight;
    for (int d = 0; d < params.v_head_size; ++d) values[d] += weight * source[d];
  }
  const float factor = total == 0.0f ? 0.0f : 1.0f / total;
  for (int d = 0; d < params.v_head_size; ++d) values[d] *= factor;
  store_lse(params, place.token, place.head, total == 0.0f ? kNegInf : maximum + std::log(total));
}

}  // namespace

void attend(const attn::AttendParams& params, Workers& workers) {
  const std::vector<RowBlock> blocks = row_blocks(params);
  workers.pool.parallel_for(
      static_cast<std::int64_t>(blocks.size()), [&](std::int64_t i, int thread) {
        const RowBlock& block = blocks[static_cast<std::size_t>(i)];
        Scratch& scratch = workers.scratch[static_cast<std::size_t>(thread)];
        attend_block(params, block, {0, params.seq_lens[block.request]}, true, scratch);
        for (int row = 0; row < block.num_rows; ++row) {
          const RowPlace place = place_of_row(params, block, row);
          store_lse(params, place.token, place.head, row_lse(scratch, row));
          normalise_row(params, row, scratch);
          store_output_row(params, place.token, place.head, scratch.line.data());
        }
      });
}

void attend_splits(const attn::AttendParams& params, const attn::SplitParams& split,
                   Workers& workers) {
  const std::vector<RowBlock> blocks = row_blocks(params);
  const auto count = static_cast<std::int64_t>(blocks.size()) * split.num_splits;
  workers.pool.parallel_for(count, [&](std::int64_t i, int thread) {
    const RowBlock& block = blocks[static_cast<std::size_t>(i / split.num_splits)];
    const auto part = static_cast<int>(i % split.num_splits);
    Scratch& scratch = workers.scratch[static_cast<std::size_t>(thread)];
    const KeyRun run = keys_of_split(params.seq_lens[block.request], split.num_splits, part);
    attend_block(params, block, run, part == 0, scratch);
    for (int row = 0; row < block.num_rows; ++row) {
      const RowPlace place = place_of_row(params, block, row);
      partial_lse(params, split, part, place) = row_lse(scratch, row);
      normalise_row(params, row, scratch);
      std::copy_n(
          scratch.line.data(), params.v_head_size,
          split.partial_output + partial_row(params, split, part, place) * params.v_head_size);
    }
  });
  if (split.arrivals != nullptr) combine_splits(params, split, workers);
}

void combine_splits(const attn::AttendParams& params, const attn::SplitParams& split,
                    Workers& workers) {
  if (params.num_requests == 0) return;
  const int first = params.query_start_loc[params.first_request];
  const int past = params.query_start_loc[params.first_request + params.num_requests];
  workers.pool.parallel_for(past - first, [&](std::int64_t i, int thread) {
    Scratch& scratch = workers.scratch[static_cast<std::size_t>(thread)];
    scratch.reserve(params.head_size, params.v_head_size, 0);
    for (int head = 0; head < params.num_heads; ++head) {
      const RowPlace place{first + i, head};
      combine_row(params, split, place, scratch.line.data());
      store_output_row(params, place.token, place.head, scratch.line.data());
    }
  });
}

}  // namespace attnbench::cpu
