// Triton's 3D form (semantics §4.3): unnormalised parts of one-row requests, and their reduction.
// Unlike the partials of split-KV decoding they are stored as m, l and sum of P V, so the reduction
// needs no logarithm before the last line.
#include <algorithm>
#include <cmath>

#include "ops/cpu/attention/attend_block.h"
#include "ops/cpu/cpu_ops.h"

namespace attnbench::cpu {
namespace {

std::int64_t cdiv(std::int64_t a, std::int64_t b) { return (a + b - 1) / b; }

/// Keys per segment: tps * TILE.
std::int64_t segment_len(std::int64_t seq_len, const attn::SegmentParams& segments) {
  const std::int64_t tiles = cdiv(seq_len, std::int64_t{segments.num_segments} * segments.tile);
  return tiles * segments.tile;
}

/// A: segments that hold any key. Without keys the first one still holds the sink (§3.5).
int num_active(std::int64_t seq_len, const attn::SegmentParams& segments) {
  const std::int64_t len = segment_len(seq_len, segments);
  return len == 0 ? 1 : static_cast<int>(cdiv(seq_len, len));
}

std::int64_t segment_row(const attn::AttendParams& params, const attn::SegmentParams& segments,
                         std::int64_t token, int head) {
  return (token * params.num_heads + head) * segments.num_segments;
}

/// The state of every row as it is; ALiBi's row constant, which m leaves out, is added back.
void store_segment(const attn::AttendParams& params, const attn::SegmentParams& segments,
                   const RowBlock& block, int segment, Scratch& scratch) {
  for (int row = 0; row < block.num_rows; ++row) {
    const RowPlace place = place_of_row(params, block, row);
    const std::int64_t at = segment_row(params, segments, place.token, place.head) + segment;
    const auto r = static_cast<std::size_t>(row);
    segments.segment_max[at] = scratch.row_max[r] + scratch.shift[r];
    segments.segment_expsum[at] = scratch.row_sum[r];
    for (int d = 0; d < params.v_head_size; ++d) {
      segments.segment_output[at * params.v_head_size + d] =
          scratch.output_at(row, d, params.v_head_size);
    }
  }
}

/// `active` segments from index `first` on into values [Dv]; returns the LSE.
float reduce_row(const attn::AttendParams& params, const attn::SegmentParams& segments,
                 std::int64_t first, int active, float* values) {
  const float* maxima = segments.segment_max + first;
  float maximum = kNegInf;
  for (int g = 0; g < active; ++g) {
    if (!(maxima[g] <= maximum)) maximum = maxima[g];
  }
  std::fill_n(values, params.v_head_size, 0.0f);
  float total = 0.0f;
  for (int g = 0; g < active; ++g) {
    if (maxima[g] == kNegInf) continue;  // fully cut by the window
    const float weight = maxima[g] == maximum ? 1.0f : std::exp(maxima[g] - maximum);
    if (weight == 0.0f) continue;
    total += segments.segment_expsum[first + g] * weight;
    const float* source = segments.segment_output + (first + g) * params.v_head_size;
    for (int d = 0; d < params.v_head_size; ++d) values[d] += source[d] * weight;
  }
  const float factor = total == 0.0f ? 0.0f : 1.0f / total;
  for (int d = 0; d < params.v_head_size; ++d) values[d] *= factor;
  return total == 0.0f ? kNegInf : maximum + std::log(total);
}

}  // namespace

void attend_segments(const attn::AttendParams& params, const attn::SegmentParams& segments,
                     Workers& workers) {
  const std::vector<RowBlock> blocks = row_blocks(params);
  const auto count = static_cast<std::int64_t>(blocks.size()) * segments.num_segments;
  workers.pool.parallel_for(count, [&](std::int64_t i, int thread) {
    const RowBlock& block = blocks[static_cast<std::size_t>(i / segments.num_segments)];
    const auto segment = static_cast<int>(i % segments.num_segments);
    const std::int64_t seq_len = params.seq_lens[block.request];
    if (segment >= num_active(seq_len, segments)) return;
    Scratch& scratch = workers.scratch[static_cast<std::size_t>(thread)];
    const std::int64_t len = segment_len(seq_len, segments);
    attend_block(params, block, {segment * len, std::min((segment + 1) * len, seq_len)},
                 segment == 0, scratch);
    store_segment(params, segments, block, segment, scratch);
  });
}

void reduce_segments(const attn::AttendParams& params, const attn::SegmentParams& segments,
                     Workers& workers) {
  workers.pool.parallel_for(params.num_requests, [&](std::int64_t i, int thread) {
    const std::int64_t request = params.first_request + i;
    Scratch& scratch = workers.scratch[static_cast<std::size_t>(thread)];
    scratch.reserve(params.head_size, params.v_head_size, 0);
    const int active = num_active(params.seq_lens[request], segments);
    for (int token = params.query_start_loc[request]; token < params.query_start_loc[request + 1];
         ++token) {
      for (int head = 0; head < params.num_heads; ++head) {
        const std::int64_t first = segment_row(params, segments, token, head);
        const float lse = reduce_row(params, segments, first, active, scratch.line.data());
        store_lse(params, token, head, lse);
        store_output_row(params, token, head, scratch.line.data());
      }
    }
  });
}

}  // namespace attnbench::cpu
