// Loading a block of rows. Padding rows, which fill the last vector of a block, get queries of 0
// and m = -inf, so that they can be computed with the others and are never stored.
#include "ops/cpu/attention/row_block.h"

#include <algorithm>

#include "core/numbers/dtype.h"
#include "ops/cpu/attention/tile_scores.h"
#include "ops/cpu/rows.h"

namespace attnbench::cpu {
namespace {

int query_len_of(const attn::AttendParams& params, int request) {
  return params.query_start_loc[request + 1] - params.query_start_loc[request];
}

std::size_t index(std::int64_t i) { return static_cast<std::size_t>(i); }

/// Causal rule and window (semantics §3.2, §3.3), cut to [0, seq_len).
void set_window_interval(const attn::AttendParams& params, int seq_len, Scratch& scratch) {
  const attn::ScoreParams& score = params.score;
  KeyInterval& interval = scratch.intervals[0];
  for (int r = 0; r < scratch.num_rows; ++r) {
    const std::int64_t p = scratch.position[index(r)];
    std::int64_t begin = 0;
    std::int64_t end = seq_len;
    if (score.window_left >= 0) begin = std::max<std::int64_t>(0, p - score.window_left);
    if (score.window_right >= 0) end = std::min<std::int64_t>(seq_len, p + score.window_right + 1);
    interval.begin[index(r)] = static_cast<std::int32_t>(std::min<std::int64_t>(begin, seq_len));
    interval.end[index(r)] = static_cast<std::int32_t>(std::max<std::int64_t>(0, end));
  }
  scratch.num_intervals = 1;
}

/// Bidirectional ranges (§3.6): a row inside a range sees all of it.
void add_range_intervals(const attn::AttendParams& params, int request, int seq_len,
                         Scratch& scratch) {
  const attn::ScoreParams& score = params.score;
  for (int k = 0; k < score.num_mm_ranges; ++k) {
    const int* range =
        score.mm_ranges + 2 * (static_cast<std::int64_t>(request) * score.num_mm_ranges + k);
    if (range[0] >= range[1]) continue;
    KeyInterval& interval = scratch.intervals[index(scratch.num_intervals)];
    bool used = false;
    for (int r = 0; r < scratch.num_rows; ++r) {
      const int p = scratch.position[index(r)];
      const bool inside = range[0] <= p && p <= range[1];
      interval.begin[index(r)] = inside ? range[0] : 0;
      interval.end[index(r)] = inside ? std::min(seq_len, range[1] + 1) : 0;
      used = used || inside;
    }
    if (used) ++scratch.num_intervals;
  }
}

/// The scaled queries; columns of padding rows are 0.
void load_queries(const attn::AttendParams& params, const RowBlock& block, Scratch& scratch) {
  const int depth = params.head_size;
  const auto dtype = static_cast<Dtype>(params.query_element);
  const attn::i64 size = element_size(params.query_element);
  // Why: int8 codes stay whole numbers, so that their dot products are exact.
  const float factor = is_int8(params) ? 1.0f : params.score.softmax_scale;
  if (!scratch.small) {
    std::fill_n(scratch.query.begin(), index(depth) * index(scratch.row_stride), 0.0f);
  }
  for (int r = 0; r < block.num_rows; ++r) {
    const RowPlace place = place_of_row(params, block, r);
    const attn::i64 offset =
        place.token * params.query_token_stride + place.head * params.query_head_stride;
    load_floats(dtype, static_cast<const char*>(params.query) + offset * size, depth,
                scratch.line.data());
    for (int d = 0; d < depth; ++d) {
      const std::size_t at = scratch.small ? index(r) * index(depth) + index(d)
                                           : index(d) * index(scratch.row_stride) + index(r);
      scratch.query[at] = scratch.line[index(d)] * factor;
    }
  }
}

/// The part of linear ALiBi that is the same for every key of a row. Why apart: slope * j reaches
/// hundreds, where float32 has no digits left for the score itself; slope * (j - p) is small for
/// the keys that count.
float alibi_row_constant(attn::Alibi form, float slope, int position, int context_len) {
  switch (attn::local_form(form)) {
    case attn::Alibi::kKeyIndex:
      return slope * static_cast<float>(position);
    case attn::Alibi::kContextRelative:
      return slope * static_cast<float>(position - context_len);
    case attn::Alibi::kNone:
    case attn::Alibi::kDistance:
    case attn::Alibi::kSqrt:
    case attn::Alibi::kGlobalKeyIndex:
    case attn::Alibi::kGlobalDistance:
    case attn::Alibi::kGlobalSqrt:
      break;
  }
  return 0.0f;
}

/// Positions of rows in the whole sequence instead of the call, and where its keys begin there.
void place_globally(const attn::AttendParams& params, const RowBlock& block, int context_len,
                    Scratch& scratch) {
  const attn::GlobalPositions& of = params.score.positions;
  const int shift = of.first_rows[block.request] - context_len;
  for (int r = 0; r < block.num_rows; ++r) scratch.position[index(r)] += shift;
  scratch.first_key_index = of.first_keys == nullptr ? 0 : of.first_keys[block.request];
}

/// Before the first key. The sink is not scaled, capped or biased (§3.5).
void reset_state(const attn::AttendParams& params, const RowBlock& block, bool with_sink,
                 Scratch& scratch) {
  for (int r = 0; r < scratch.row_stride; ++r) {
    float sink = kNegInf;
    if (with_sink && r < block.num_rows) {
      sink = params.score.sinks[place_of_row(params, block, r).head];
    }
    // A sink is a key with a score and no value; -inf is no sink at all (§3.5).
    const float shift = r < block.num_rows ? scratch.shift[index(r)] : 0.0f;
    scratch.row_max[index(r)] = sink - shift;
    scratch.row_sum[index(r)] = sink == kNegInf ? 0.0f : 1.0f;
  }
  const int rows = scratch.small ? scratch.num_rows : scratch.row_stride;
  std::fill_n(scratch.output.begin(), index(rows) * index(params.v_head_size), 0.0f);
}

}  // namespace

std::vector<RowBlock> row_blocks(const attn::AttendParams& params) {
  const int group = params.num_heads / params.num_kv_heads;
  std::vector<RowBlock> blocks;
  for (int i = 0; i < params.num_requests; ++i) {
    const int request = params.first_request + i;
    const std::int64_t rows = std::int64_t{query_len_of(params, request)} * group;
    const std::int64_t num_tiles = (rows + kRowTile - 1) / kRowTile;
    for (std::int64_t tile = num_tiles - 1; tile >= 0; --tile) {
      const std::int64_t first = tile * kRowTile;
      for (int head = 0; head < params.num_kv_heads; ++head) {
        blocks.push_back({request, head, first,
                          static_cast<int>(std::min<std::int64_t>(kRowTile, rows - first))});
      }
    }
  }
  return blocks;
}

RowPlace place_of_row(const attn::AttendParams& params, const RowBlock& block, int row) {
  const int group = params.num_heads / params.num_kv_heads;
  const std::int64_t packed = block.first_row + row;
  return {params.query_start_loc[block.request] + packed / group,
          block.kv_head * group + static_cast<int>(packed % group)};
}

void load_rows(const attn::AttendParams& params, const RowBlock& block, bool with_sink,
               Scratch& scratch) {
  scratch.num_rows = block.num_rows;
  scratch.row_stride = (block.num_rows + kLanes - 1) / kLanes * kLanes;
  scratch.small = block.num_rows <= kMaxSmallRows;
  // Why here: the scratch may have served an operation that had one, of another problem.
  scratch.channel_scale = nullptr;
  const int seq_len = params.seq_lens[block.request];
  const int query_start = params.query_start_loc[block.request];
  const int context_len = seq_len - query_len_of(params, block.request);
  for (int r = 0; r < block.num_rows; ++r) {
    const RowPlace place = place_of_row(params, block, r);
    // Bottom-right alignment: the last query stands at the last key.
    scratch.position[index(r)] = static_cast<int>(place.token) - query_start + context_len;
    scratch.slope[index(r)] =
        params.score.alibi_slopes == nullptr ? 0.0f : params.score.alibi_slopes[place.head];
  }
  set_window_interval(params, seq_len, scratch);
  if (params.score.mm_ranges != nullptr) {
    add_range_intervals(params, block.request, seq_len, scratch);
  }
  // Masks are done: from here on positions are those of the bias.
  if (attn::is_global(params.score.alibi)) place_globally(params, block, context_len, scratch);
  for (int r = 0; r < block.num_rows; ++r) {
    scratch.shift[index(r)] = alibi_row_constant(params.score.alibi, scratch.slope[index(r)],
                                                 scratch.position[index(r)], context_len);
  }
  load_queries(params, block, scratch);
  if (is_int8(params)) load_query_scales(params, block, scratch);
  reset_state(params, block, with_sink && params.score.sinks != nullptr, scratch);
}

KeyRun visible_run(const Scratch& scratch, KeyRun run) {
  std::int64_t begin = run.end;
  std::int64_t end = run.begin;
  for (int k = 0; k < scratch.num_intervals; ++k) {
    const KeyInterval& interval = scratch.intervals[index(k)];
    for (int r = 0; r < scratch.num_rows; ++r) {
      if (interval.begin[index(r)] >= interval.end[index(r)]) continue;
      begin = std::min<std::int64_t>(begin, interval.begin[index(r)]);
      end = std::max<std::int64_t>(end, interval.end[index(r)]);
    }
  }
  begin = std::max(begin, run.begin);
  end = std::min(end, run.end);
  return {begin, std::max(begin, end)};
}

}  // namespace attnbench::cpu
