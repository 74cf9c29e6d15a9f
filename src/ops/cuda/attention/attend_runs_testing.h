// A small case of an attention operation: its tensors, drawn, its parameters, and its results by
// any Ops.
#pragma once

#include "ops/cuda/testing/operation_cases_testing.h"

namespace attnbench::cuda {

enum class AttendForm { kWhole, kSplits, kSegments, kJoined, kPlanned };

struct AttendCase {
  std::string name;
  Dtype query = Dtype::kBF16;
  Dtype cache = Dtype::kBF16;
  Dtype output = Dtype::kBF16;
  int head_size = 128;
  int v_head_size = 128;
  int block_size = 16;  // 0: ragged
  int rope = 0;         // last columns of ragged keys that all heads share, in a place of their own
  AttendForm form = AttendForm::kWhole;
  int parts = 0;  // 0: 16 segments, else 3
  std::vector<int> query_lens{70, 0, 5};
  std::vector<int> context_lens{33, 0, 100};
  int group = 2;
  int window_left = -1;
  int window_right = 0;
  float soft_cap = 0.0f;
  attn::Alibi alibi = attn::Alibi::kNone;
  bool has_sinks = false;
  bool has_ranges = false;
  bool has_token_head_scales = false;
  int round_dequantized = 0;
  float output_scale = 0.0f;
  float softmax_scale = 0.1f;
  int e4m3_probability = 0;
  int fast_fp8_sums = 0;
  /// A few query elements of a thousand; their scores have no more digits than 16 bits hold.
  bool has_large_queries = true;
  float sink_shift = 0.0f;        // of every head's sink
  float value_gain = 1.0f;        // of the scale of the values
  float last_value_scale = 0.0f;  // > 0: of the value of each request's last key
  std::string kernel;             // that devices are held to; empty: the first that fits
  bool values_apart = false;      // set_values_apart()
};

/// Rows of two KV heads in a paged cache of shuffled blocks, or one after another. What no row may
/// read is NaN.
struct AttendTensors {
  Tensor key;    // [cells, 2, cell]
  Tensor value;  // the same with its own cell when ragged
  Tensor rope;   // [cells, 1, cell], behind which others' columns lie; where keys have one
  std::vector<int> block_table;
  int table_stride = 0;
};

inline constexpr int kAttendKvHeads = 2;

inline void fill_cells(Tensor& tensor, attn::i64 first, int count, int width, int cell,
                       unsigned seed, bool has_scale) {
  if (!has_scale && tensor.dtype() != Dtype::kI8) {
    const auto row = static_cast<std::size_t>(width);
    const std::vector<float>& numbers = normal_numbers(seed, static_cast<std::size_t>(count) * row);
    for (int i = 0; i < count; ++i) {
      store_floats(tensor.dtype(), &numbers[static_cast<std::size_t>(i) * row], width,
                   tensor.bytes() + (first + i) * cell * dtype_size(tensor.dtype()));
    }
    return;
  }
  std::mt19937 random(seed);
  std::normal_distribution<float> normal;
  const float size = tensor.dtype() == Dtype::kI8 ? 30.0f : 1.0f;
  for (attn::i64 at = first * cell; at < (first + count) * cell; at += cell) {
    for (int d = 0; d < width; ++d) tensor.set(at + d, size * normal(random));
    if (!has_scale) continue;
    const float scale = 0.03f / size * (1.0f + 0.01f * static_cast<float>(random() % 50)) * 30.0f;
    std::memcpy(tensor.bytes() + at + width, &scale, sizeof scale);
  }
}

/// Paged: K and V lie apart but share cells of max(D, Dv) elements and, with per-token-head scales,
/// four bytes more.
inline AttendTensors draw_attend(const AttendCase& c, const std::vector<int>& seq_lens) {
  AttendTensors t;
  const int padding = c.has_token_head_scales ? 4 : 0;
  const bool paged = c.block_size > 0;
  const int width = std::max(c.head_size, c.v_head_size) + padding;
  const int key_cell = paged ? width : c.head_size - c.rope;
  const int rope_cell = c.rope + 16;
  // Codes of heads that are padded, as an encoder has them; what is behind a head is poison.
  const int padded = dtype_size(c.cache) == 1 ? (c.v_head_size + 15) / 16 * 16 : c.v_head_size;
  const int value_cell = paged ? width : padded;
  int longest = 0;
  attn::i64 tokens = 0;
  for (const int len : seq_lens) {
    longest = std::max(longest, len);
    tokens += len;
  }
  const int per_request = paged ? longest / c.block_size + 2 : 0;
  const auto requests = static_cast<int>(seq_lens.size());
  const attn::i64 rows = paged ? attn::i64{per_request} * requests * c.block_size : tokens + 1;
  t.key = poisoned(c.cache, {rows, kAttendKvHeads, key_cell});
  t.value = poisoned(c.cache, {rows, kAttendKvHeads, value_cell});
  if (c.rope > 0) t.rope = poisoned(c.cache, {rows, 1, rope_cell});
  if (c.cache == Dtype::kI8) std::memset(t.key.bytes(), 0, t.key.size_bytes());
  t.table_stride = per_request;
  attn::i64 start = 0;
  for (int b = 0; b < requests; ++b) {
    const int len = seq_lens[static_cast<std::size_t>(b)];
    if (!paged) {
      fill_cells(t.key, start * kAttendKvHeads, len * kAttendKvHeads, key_cell, key_cell,
                 static_cast<unsigned>(2 * b), false);
      if (c.rope > 0) {
        fill_cells(t.rope, start, len, c.rope, rope_cell, static_cast<unsigned>(2 * b + 50), false);
      }
      fill_cells(t.value, start * kAttendKvHeads, len * kAttendKvHeads, c.v_head_size, value_cell,
                 static_cast<unsigned>(2 * b + 1), false);
      start += len;
      continue;
    }
    for (int i = 0; i < per_request; ++i) {
      // Blocks of the requests alternate, last ones first; entries past the end are garbage.
      const int block = (per_request - 1 - i) * requests + b;
      const int live = std::min(c.block_size, len - i * c.block_size);
      t.block_table.push_back(live > 0 ? block : -5);
      if (live <= 0) continue;
      const attn::i64 first = attn::i64{block} * c.block_size * kAttendKvHeads;
      fill_cells(t.key, first, live * kAttendKvHeads, c.head_size, key_cell,
                 static_cast<unsigned>(100 * b + i), padding > 0);
      fill_cells(t.value, first, live * kAttendKvHeads, c.v_head_size, value_cell,
                 static_cast<unsigned>(100 * b + i + 50), padding > 0);
      if (c.last_value_scale == 0.0f || len > (i + 1) * c.block_size) continue;
      for (int head = 0; head < kAttendKvHeads; ++head) {
        const attn::i64 cell = first + attn::i64{live - 1} * kAttendKvHeads + head;
        std::memcpy(t.value.bytes() + cell * value_cell + c.v_head_size, &c.last_value_scale,
                    sizeof c.last_value_scale);
        // Why: a column in which this key is 0 is the sum of weights that are nothing beside its
        // own.
        for (attn::i64 d = cell * value_cell; d < cell * value_cell + c.v_head_size; ++d) {
          if (t.value.at(d) == 0.0f) t.value.set(d, 1.0f);
        }
      }
    }
  }
  return t;
}

inline void set_keys_values(attn::AttendParams& p, const AttendCase& c, const AttendTensors& t,
                            const std::vector<int>& seq_lens, CaseMemory& memory) {
  attn::KvParams& kv = p.kv;
  kv.element = element_of(c.cache);
  kv.key = memory.upload(t.key);
  kv.value = memory.upload(t.value);
  kv.head_stride_key = t.key.dim(2);
  kv.head_stride_value = t.value.dim(2);
  kv.token_stride_key = kAttendKvHeads * kv.head_stride_key;
  kv.token_stride_value = kAttendKvHeads * kv.head_stride_value;
  if (c.rope > 0) {
    kv.rope = memory.upload(t.rope);
    kv.rope_token_stride = t.rope.dim(2);
    kv.rope_size = c.rope;
  }
  if (c.block_size > 0) {
    kv.block_stride = c.block_size * kv.token_stride_key;
    kv.block_table = memory.upload(t.block_table);
    kv.block_table_stride = t.table_stride;
    kv.block_size = c.block_size;
  } else {
    std::vector<attn::i64> starts{0};
    for (const int len : seq_lens) starts.push_back(starts.back() + len);
    kv.kv_start_loc = memory.upload(starts);
  }
  if (c.has_token_head_scales) {
    kv.key_scales = reinterpret_cast<const float*>(static_cast<const char*>(kv.key) + c.head_size);
    kv.value_scales =
        reinterpret_cast<const float*>(static_cast<const char*>(kv.value) + c.v_head_size);
    kv.scale_block_stride = kv.block_stride / 4;
    kv.scale_slot_stride = kv.token_stride_key / 4;
    kv.scale_head_stride = kv.head_stride_key / 4;
  } else if (dtype_size(c.cache) == 1) {
    kv.k_scale = memory.upload(std::vector<float>{0.7f, 1.3f});
    kv.v_scale = memory.upload(std::vector<float>{1.1f * c.value_gain, 0.6f * c.value_gain});
    kv.round_dequantized = c.round_dequantized;
  }
}

/// Values of one byte become f16 in pages of their own, by the operation that pipelines have in
/// front of attend(). Keys and values have the same sizes.
inline void set_values_apart(attn::AttendParams& p, const std::vector<int>& seq_lens, Ops& ops,
                             CaseMemory& memory) {
  attn::KvParams& kv = p.kv;
  const attn::i64 row = attn::i64{p.num_kv_heads} * p.v_head_size;
  std::vector<int> table;
  std::vector<int> starts{0};
  std::vector<int> request_of_row;
  int pages = 0;
  for (const int len : seq_lens) {
    const int of_request = (len + kv.block_size - 1) / kv.block_size;
    for (int i = 0; i < kv.block_table_stride; ++i) table.push_back(i < of_request ? pages++ : -7);
    starts.push_back(pages * kv.block_size);
    const auto request = static_cast<int>(starts.size()) - 2;
    request_of_row.resize(static_cast<std::size_t>(starts.back()), request);
  }
  attn::MlaGatherParams gather{};
  gather.entries = {kv.element,      kv.value,
                    kv.block_stride, row,
                    kv.block_table,  kv.block_table_stride,
                    kv.block_size,   static_cast<int>(row)};
  gather.output_element = attn::Element::kF16;
  gather.output = memory.upload(poisoned(Dtype::kF16, {starts.back(), row}));
  gather.output_token_stride = row;
  gather.cu_seq_lens = memory.upload(starts);
  gather.token_to_seq = memory.upload(request_of_row);
  gather.num_tokens = starts.back();
  ops.gather_mla(gather);
  kv.value = gather.output;
  kv.value_block_table = memory.upload(table);
  kv.value_block_stride = kv.block_size * row;
  if (p.int8.query_scale != nullptr) p.int8.value_element = attn::Element::kF16;
}

inline Tensor draw_queries(const AttendCase& c, attn::i64 tokens, int heads) {
  Tensor query = drawn(c.query, {tokens, heads, c.head_size}, 11, false);
  for (attn::i64 i = 0; i < query.num_elements() && !c.has_large_queries; ++i) {
    if (std::fabs(query.at(i)) > 10.0f) query.set(i, query.at(i) / 1000.0f);
  }
  return query;
}

inline std::vector<int> seq_lens_of(const AttendCase& c) {
  std::vector<int> seq_lens;
  for (std::size_t b = 0; b < c.query_lens.size(); ++b) {
    seq_lens.push_back(c.query_lens[b] + c.context_lens[b]);
  }
  return seq_lens;
}

/// Queries, keys and the rest of a case on the device; output and LSE are results.
inline attn::AttendParams attend_params(const AttendCase& c, CaseMemory& memory) {
  const auto requests = c.query_lens.size();
  std::vector<int> starts{0};
  const std::vector<int> seq_lens = seq_lens_of(c);
  int max_query_len = 0;
  for (std::size_t b = 0; b < requests; ++b) {
    starts.push_back(starts.back() + c.query_lens[b]);
    max_query_len = std::max(max_query_len, c.query_lens[b]);
  }
  const int heads = kAttendKvHeads * c.group;
  const attn::i64 tokens = starts.back();
  const attn::i64 padded = tokens + 2;  // rows that are neither read nor written
  attn::AttendParams p{};
  p.query_element = element_of(c.query);
  p.output_element = element_of(c.output);
  p.query = memory.upload(draw_queries(c, padded, heads));
  p.query_token_stride = attn::i64{heads} * c.head_size;
  p.query_head_stride = c.head_size;
  p.output = memory.result(poisoned(c.output, {padded, heads, c.v_head_size}));
  p.output_token_stride = attn::i64{heads} * c.v_head_size;
  p.output_head_stride = c.v_head_size;
  p.lse = static_cast<float*>(memory.result(poisoned(Dtype::kF32, {heads, padded})));
  p.lse_stride = padded;
  p.output_scale = c.output_scale;
  p.query_start_loc = memory.upload(starts);
  p.seq_lens = memory.upload(seq_lens);
  p.num_requests = static_cast<int>(requests);
  p.num_heads = heads;
  p.num_kv_heads = kAttendKvHeads;
  p.head_size = c.head_size;
  p.v_head_size = c.v_head_size;
  p.max_query_len = max_query_len;
  p.score.softmax_scale = c.softmax_scale;
  p.e4m3_probability = c.e4m3_probability;
  p.fast_fp8_sums = c.fast_fp8_sums;
  p.score.soft_cap = c.soft_cap;
  p.score.window_left = c.window_left;
  p.score.window_right = c.window_right;
  p.score.alibi = c.alibi;
  std::vector<float> per_head;
  for (int h = 0; h < heads; ++h) per_head.push_back(0.03f * static_cast<float>(h + 1));
  if (c.alibi != attn::Alibi::kNone) p.score.alibi_slopes = memory.upload(per_head);
  if (attn::is_global(c.alibi)) {
    // The second of three ranks, whose keys begin in the middle of a stripe.
    std::vector<int> first_rows;
    for (const int len : seq_lens) first_rows.push_back(3 * len + 5);
    p.score.positions = {memory.upload(first_rows), memory.upload(std::vector<int>(requests, 6)), 4,
                         3, 1};
  }
  for (float& sink : per_head) sink += c.sink_shift;
  if (c.has_sinks) p.score.sinks = memory.upload(per_head);
  if (c.has_ranges) {
    std::vector<int> ranges;
    for (std::size_t b = 0; b < requests; ++b) ranges.insert(ranges.end(), {40, 90, 0, 0});
    p.score.mm_ranges = memory.upload(ranges);
    p.score.num_mm_ranges = 2;
  }
  set_keys_values(p, c, draw_attend(c, seq_lens), seq_lens, memory);
  return p;
}

/// A plan that the device makes, and room for what it leaves of a problem.
struct DevicePlan {
  attn::MakePlanParams make{};
  attn::PlanParams plan{};

  DevicePlan(const attn::AttendParams& p, int num_parts, CaseMemory& memory) {
    const auto ints = [&](int count) {
      return static_cast<int*>(memory.upload(poisoned(Dtype::kI32, {count})));
    };
    const auto floats = [&](attn::i64 count) {
      return static_cast<float*>(memory.upload(poisoned(Dtype::kF32, {count})));
    };
    make = {p.query_start_loc,
            p.seq_lens,
            p.first_request,
            p.num_requests,
            num_parts,
            1,
            ints(num_parts * attn::kPlanRecord),
            ints(p.num_requests + 1),
            nullptr};
    make.partial_start_loc =
        static_cast<attn::i64*>(memory.upload(poisoned(Dtype::kI64, {p.num_requests + 1})));
    const attn::i64 rows = attn::i64{2} * num_parts * p.max_query_len * p.num_heads;
    plan = {num_parts,
            make.parts,
            make.num_splits,
            make.partial_start_loc,
            floats(rows * p.v_head_size),
            floats(rows)};
  }
  void run(Ops& ops, const attn::AttendParams& p) const {
    ops.make_plan(make);
    ops.attend_plan(p, plan);
    ops.combine_plan(p, plan);
  }
};

inline std::vector<Tensor> run_attend(Ops& ops, const AttendCase& c) {
  CaseMemory memory(ops);
  attn::AttendParams p = attend_params(c, memory);
  if (c.values_apart) set_values_apart(p, seq_lens_of(c), ops, memory);
  if (c.form == AttendForm::kWhole) {
    ops.attend(p);
    return memory.results();
  }
  const int parts = c.parts > 0 ? c.parts : (c.form == AttendForm::kSegments ? 16 : 3);
  if (c.form == AttendForm::kPlanned) {
    DevicePlan(p, parts, memory).run(ops, p);
    return memory.results();
  }
  const attn::i64 padded = p.lse_stride;
  const attn::i64 rows = parts * padded * p.num_heads;
  auto* values = static_cast<float*>(memory.upload(poisoned(Dtype::kF32, {rows, c.v_head_size})));
  auto* first = static_cast<float*>(memory.upload(poisoned(Dtype::kF32, {rows})));
  auto* second = static_cast<float*>(memory.upload(poisoned(Dtype::kF32, {rows})));
  if (c.form == AttendForm::kJoined) {
    const attn::i64 counters =
        attn::num_arrivals(p.num_requests, p.num_heads, p.num_kv_heads, p.max_query_len);
    const Tensor zeros(Dtype::kI32, {counters});
    const attn::SplitParams split{parts, padded, values, first,
                                  static_cast<int*>(memory.result(zeros))};
    // Twice: the second finds the counters as the first has left them.
    ops.attend_splits(p, split);
    ops.attend_splits(p, split);
  } else if (c.form == AttendForm::kSplits) {
    const attn::SplitParams split{parts, padded, values, first};
    ops.attend_splits(p, split);
    ops.combine_splits(p, split);
  } else {
    const attn::SegmentParams segments{parts, 16, values, first, second};
    ops.attend_segments(p, segments);
    ops.reduce_segments(p, segments);
  }
  return memory.results();
}

/// run(ops, c), with devices held to `kernel` unless it is empty; the CPU has none to be held to.
template <class Case>
std::vector<Tensor> by_kernel(Ops& ops, const std::string& kernel,
                              std::vector<Tensor> (*run)(Ops&, const Case&), const Case& c) {
  const bool is_held = !kernel.empty() && ops.device_name() != "cpu";
  if (is_held) ops.force_kernel(kernel);
  std::vector<Tensor> results = run(ops, c);
  if (is_held) ops.force_kernel("");
  return results;
}
inline std::vector<Tensor> run_held(Ops& ops, const AttendCase& c) {
  return by_kernel(ops, c.kernel, run_attend, c);
}

}  // namespace attnbench::cuda
