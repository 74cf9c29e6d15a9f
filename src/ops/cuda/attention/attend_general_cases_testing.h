// Small cases of kernels/attention/general.cuh: what the tiled attention kernels do not do.
#pragma once

#include <algorithm>
#include <limits>

#include "ops/cuda/attention/attend_cases_testing.h"
#include "ops/cuda/testing/coverage_cases_testing.h"

namespace attnbench::cuda {

enum class MlaForm { kWhole, kSplits, kPlan, kSparse, kSparsePlan };

struct MlaAttendCase {
  std::string name;
  Dtype query = Dtype::kBF16;
  Dtype output = Dtype::kBF16;
  attn::MlaEntry format = attn::MlaEntry::kCopy;
  MlaForm form = MlaForm::kWhole;
  int heads = 40;
  int latent = 512;
  int rope = 64;
};

inline constexpr int kMlaBlockSize = 64;

/// Keys of three requests, then the plan of two parts that split the second of them.
inline attn::PlanParams make_plan(CaseMemory& memory, int heads, int latent, int query_len) {
  attn::PlanParams plan{};
  plan.num_parts = 3;
  // begin_req, end_req, begin_block, end_block, begin_split; the last part has nothing to do.
  plan.parts = memory.upload(std::vector<int>{0, 1, 0, 1, 0, 0, 0, 0,  //
                                              1, 2, 1, 1, 1, 0, 0, 0,  //
                                              1, 0, 0, 0, 0, 0, 0, 0});
  plan.num_splits = memory.upload(std::vector<int>{0, 1, 3, 4});
  const attn::i64 rows = 2 * query_len;
  plan.partial_start_loc = memory.upload(std::vector<attn::i64>{0, 0, rows, rows});
  plan.partial_output =
      static_cast<float*>(memory.upload(poisoned(Dtype::kF32, {rows, heads, latent})));
  plan.partial_lse = static_cast<float*>(memory.upload(poisoned(Dtype::kF32, {rows, heads})));
  return plan;
}

/// drawn(), but where queries and entries are both in e4m3 nothing beyond 8. Why: tensor cores keep
/// some 14 bits of a sum of such products, so that next to one of 448 by 448 a score is off by 0.4,
/// and the weights by as much as no tolerance of this test allows.
inline Tensor drawn_for(const MlaAttendCase& c, Dtype dtype, std::vector<std::int64_t> shape,
                        unsigned seed) {
  Tensor tensor = drawn(dtype, std::move(shape), seed, false);
  if (c.query != Dtype::kE4M3 || c.form != MlaForm::kWhole) return tensor;
  for (std::int64_t i = 0; i < tensor.num_elements(); ++i) {
    tensor.set(i, std::clamp(tensor.at(i), -8.0f, 8.0f));
  }
  return tensor;
}

inline void set_mla_entries(attn::AttendParams& p, const MlaAttendCase& c, int blocks,
                            CaseMemory& memory) {
  const bool is_ds_mla = c.format == attn::MlaEntry::kDsMla;
  const bool is_model1 = c.format == attn::MlaEntry::kModel1;
  int entry = is_ds_mla ? attn::kDsMlaEntryBytes : c.latent + c.rope;
  if (is_model1) entry = attn::kModel1EntryBytes;
  const Dtype cache = c.format == attn::MlaEntry::kE4M3 ? Dtype::kE4M3 : c.query;
  const int entries = blocks * kMlaBlockSize;
  p.kv.element = is_ds_mla || is_model1 ? attn::Element::kU8 : element_of(cache);
  p.kv.key = memory.upload(is_ds_mla ? drawn_ds_mla(entries, 41)
                                     : drawn_for(c, cache, {entries, entry}, 42));
  if (is_model1) p.kv.key = memory.upload(drawn_model1(blocks, kMlaBlockSize, 45));
  p.kv.value = p.kv.key;
  p.kv.token_stride_key = p.kv.token_stride_value = is_model1 ? attn::kModel1DataBytes : entry;
  p.kv.block_stride = attn::i64{kMlaBlockSize} * entry;
  p.kv.block_size = kMlaBlockSize;
  if (c.format == attn::MlaEntry::kE4M3) {
    p.kv.k_scale = p.kv.v_scale = memory.upload(std::vector<float>{0.6f});
  }
}

/// Lists with -1, with slots past the cache and with doubles.
inline attn::SparseParams make_sparse(const MlaAttendCase& c, int tokens, int num_slots,
                                      CaseMemory& memory) {
  constexpr int kTopk = 128;
  std::mt19937 random(43);
  std::vector<int> slots;
  for (int i = 0; i < tokens * kTopk; ++i) {
    const auto kind = random() % 9;
    const int slot = static_cast<int>(random() % static_cast<unsigned>(num_slots));
    slots.push_back(kind == 0 ? -1 : kind == 1 ? num_slots + 3 : slot);
  }
  for (int i = 0; i < kTopk; ++i) slots[static_cast<std::size_t>(i)] = -1;
  attn::SparseParams sparse{};
  sparse.format = c.format;
  sparse.slots = memory.upload(slots);
  sparse.slots_stride = sparse.topk = kTopk;
  sparse.num_slots = num_slots;
  return sparse;
}

inline std::vector<Tensor> run_mla_attend(Ops& ops, const MlaAttendCase& c) {
  constexpr int kBlocks = 7;
  constexpr int kQueryLen = 2;
  constexpr int kTokens = 3 * kQueryLen;
  CaseMemory memory(ops);
  const int width = c.latent + c.rope;
  attn::AttendParams p{};
  p.query_element = element_of(c.query);
  p.output_element = element_of(c.output);
  p.query = memory.upload(drawn_for(c, c.query, {kTokens, c.heads, width}, 44));
  p.query_token_stride = attn::i64{c.heads} * width;
  p.query_head_stride = width;
  p.output = memory.result(poisoned(c.output, {kTokens + 1, c.heads, c.latent}));
  p.output_token_stride = attn::i64{c.heads} * c.latent;
  p.output_head_stride = c.latent;
  p.lse = static_cast<float*>(memory.result(poisoned(Dtype::kF32, {c.heads, kTokens + 1})));
  p.lse_stride = kTokens + 1;
  p.query_start_loc = memory.upload(std::vector<int>{0, 2, 4, 6});
  p.seq_lens = memory.upload(std::vector<int>{37, 100, 64});
  p.num_requests = 3;
  p.max_query_len = kQueryLen;
  p.num_heads = c.heads;
  p.num_kv_heads = 1;
  p.head_size = width;
  p.v_head_size = c.latent;
  p.score.softmax_scale = 0.01f;
  p.score.window_left = -1;
  p.score.window_right = 0;
  set_mla_entries(p, c, kBlocks, memory);
  if (c.form == MlaForm::kSparse || c.form == MlaForm::kSparsePlan) {
    const attn::SparseParams sparse = make_sparse(c, kTokens, kBlocks * kMlaBlockSize, memory);
    if (c.form == MlaForm::kSparse) {
      ops.attend_sparse(p, sparse);
      return memory.results();
    }
    const attn::PlanParams plan = make_plan(memory, c.heads, c.latent, kQueryLen);
    ops.attend_sparse_plan(p, sparse, plan);
    ops.combine_plan(p, plan);
    return memory.results();
  }
  p.kv.block_table = memory.upload(std::vector<int>{5, 1 << 30, 2, 6, 0, 1 << 30});
  p.kv.block_table_stride = 2;
  if (c.form == MlaForm::kWhole) {
    ops.attend(p);
  } else if (c.form == MlaForm::kPlan) {
    const attn::PlanParams plan = make_plan(memory, c.heads, c.latent, kQueryLen);
    ops.attend_plan(p, plan);
    ops.combine_plan(p, plan);
  } else {
    constexpr int kSplits = 2;
    const attn::i64 rows = attn::i64{kSplits} * kTokens * c.heads;
    const attn::SplitParams split{
        kSplits, kTokens,
        static_cast<float*>(memory.upload(poisoned(Dtype::kF32, {rows, c.latent}))),
        static_cast<float*>(memory.upload(poisoned(Dtype::kF32, {rows})))};
    ops.attend_splits(p, split);
    ops.combine_splits(p, split);
  }
  return memory.results();
}

struct Int8AttendCase {
  Dtype values;  // kI8: level 1
  int head_size;
  bool splits = false;
  bool saves = false;
  std::vector<int> query_lens{5, 0, 4};
  std::vector<int> seq_lens{70, 0, 4};
  int block_size = 16;
  int heads = 4;
  int window_left = -1;
  int window_right = 0;
  float soft_cap = 0.0f;
  bool joined = false;        // splits, by counters of their arrivals
  bool values_apart = false;  // of level 1: set_values_apart()
};

/// Pages of the requests one after another, in shuffled blocks; entries past a request's are none.
struct Int8Pages {
  std::vector<int> table;
  int stride = 0;
  int num_blocks = 0;
};
inline Int8Pages int8_pages(const Int8AttendCase& c) {
  Int8Pages pages;
  for (const int len : c.seq_lens) {
    const int of_request = (len + c.block_size - 1) / c.block_size;
    pages.stride = std::max(pages.stride, of_request);
    pages.num_blocks += of_request;
  }
  pages.num_blocks += 6;  // of nobody
  std::vector<int> blocks(static_cast<std::size_t>(pages.num_blocks));
  for (std::size_t i = 0; i < blocks.size(); ++i) blocks[i] = static_cast<int>(i);
  std::mt19937 random(44);
  std::shuffle(blocks.begin(), blocks.end(), random);
  std::size_t next = 0;
  for (const int len : c.seq_lens) {
    for (int i = 0; i < pages.stride; ++i) {
      pages.table.push_back(i * c.block_size < len ? blocks[next++] : -9);
    }
  }
  return pages;
}

/// Scales [blocks, 2, block_size] of slots that hold no key of a request become NaN.
inline void spoil_unused(Tensor& scales, const Int8AttendCase& c, const Int8Pages& pages) {
  std::vector<bool> used(static_cast<std::size_t>(pages.num_blocks * c.block_size), false);
  for (std::size_t r = 0; r < c.seq_lens.size(); ++r) {
    for (int key = 0; key < c.seq_lens[r]; ++key) {
      const auto entry =
          r * static_cast<std::size_t>(pages.stride) + static_cast<std::size_t>(key / c.block_size);
      used[static_cast<std::size_t>(pages.table[entry] * c.block_size + key % c.block_size)] = true;
    }
  }
  for (std::int64_t i = 0; i < scales.num_elements(); ++i) {
    const std::int64_t block = i / c.block_size / 2;
    const auto slot = static_cast<std::size_t>(block * c.block_size + i % c.block_size);
    if (!used[slot]) scales.set(i, std::numeric_limits<float>::quiet_NaN());
  }
}

/// Two KV heads that the query heads share; cache [NB, Hk, bs, D], key scales beside it.
inline std::vector<Tensor> run_int8_attend(Ops& ops, const Int8AttendCase& c) {
  constexpr int kKvHeads = 2;
  const int heads = c.heads;
  const int block_size = c.block_size;
  const Int8Pages pages = int8_pages(c);
  const int blocks = pages.num_blocks;
  std::vector<int> starts{0};
  for (const int len : c.query_lens) starts.push_back(starts.back() + len);
  const int tokens = starts.back();
  CaseMemory memory(ops);
  const int d = c.head_size;
  const Dtype output = c.values == Dtype::kI8 ? Dtype::kBF16 : c.values;
  const auto drawn_codes = [](std::vector<std::int64_t> shape, unsigned seed) {
    Tensor tensor(Dtype::kI8, std::move(shape));
    std::mt19937 random(seed);
    for (std::int64_t i = 0; i < tensor.num_elements(); ++i) {
      tensor.set(i, static_cast<float>(random() % 256) - 128.0f);
    }
    return tensor;
  };
  const auto drawn_scales = [](std::vector<std::int64_t> shape, unsigned seed) {
    Tensor tensor(Dtype::kF32, std::move(shape));
    std::mt19937 random(seed);
    for (std::int64_t i = 0; i < tensor.num_elements(); ++i) {
      tensor.set(i, 0.01f + 1e-4f * static_cast<float>(random() % 100));
    }
    return tensor;
  };
  // Without the large values of drawn(): P is rounded to the type of the values, so that an output
  // errs in proportion to the largest of them.
  const auto drawn_values = [&c](std::vector<std::int64_t> shape, unsigned seed) {
    Tensor tensor(c.values, std::move(shape));
    std::mt19937 random(seed);
    std::normal_distribution<float> normal;
    for (std::int64_t i = 0; i < tensor.num_elements(); ++i) tensor.set(i, normal(random));
    return tensor;
  };
  const std::vector<std::int64_t> cells{blocks, kKvHeads, block_size, d};
  void* key_cache = memory.result(drawn_codes(cells, 45));
  void* value_cache =
      memory.result(c.values == Dtype::kI8 ? drawn_codes(cells, 46) : drawn_values(cells, 46));
  Tensor slot_scales = drawn_scales({blocks, kKvHeads, block_size}, 47);
  spoil_unused(slot_scales, c, pages);
  auto* key_scales = static_cast<float*>(memory.result(slot_scales));
  attn::AttendParams p{};
  p.query_element = attn::Element::kI8;
  p.output_element = element_of(output);
  p.query = memory.upload(drawn_codes({tokens, heads, d}, 48));
  p.query_token_stride = p.output_token_stride = attn::i64{heads} * d;
  p.query_head_stride = p.output_head_stride = d;
  p.output = memory.result(poisoned(output, {tokens, heads, d}));
  p.lse = static_cast<float*>(memory.result(poisoned(Dtype::kF32, {heads, tokens})));
  p.lse_stride = tokens;
  p.query_start_loc = memory.upload(starts);
  p.seq_lens = memory.upload(c.seq_lens);
  p.num_requests = static_cast<int>(c.seq_lens.size());
  p.max_query_len = *std::max_element(c.query_lens.begin(), c.query_lens.end());
  p.num_heads = heads;
  p.num_kv_heads = kKvHeads;
  p.head_size = p.v_head_size = d;
  p.score.softmax_scale = 0.05f;
  p.score.window_left = c.window_left;
  p.score.window_right = c.window_right;
  p.score.soft_cap = c.soft_cap;
  p.kv.element = attn::Element::kI8;
  p.kv.key = key_cache;
  p.kv.value = value_cache;
  p.kv.head_stride_key = p.kv.head_stride_value = attn::i64{block_size} * d;
  p.kv.token_stride_key = p.kv.token_stride_value = d;
  p.kv.block_stride = kKvHeads * p.kv.head_stride_key;
  p.kv.block_table = memory.upload(pages.table);
  p.kv.block_table_stride = pages.stride;
  p.kv.block_size = block_size;
  p.kv.key_scales = key_scales;
  p.kv.scale_block_stride = kKvHeads * block_size;
  p.kv.scale_head_stride = block_size;
  p.kv.scale_slot_stride = 1;
  p.int8.query_scale = static_cast<const float*>(memory.upload(drawn_scales({heads, tokens}, 49)));
  p.int8.query_scale_token_stride = 1;
  p.int8.query_scale_head_stride = tokens;
  p.int8.value_element = element_of(c.values);
  if (c.values == Dtype::kI8) {
    p.int8.value_channel_scale =
        static_cast<const float*>(memory.upload(drawn_scales({kKvHeads, d}, 50)));
  }
  if (c.values_apart) set_values_apart(p, c.seq_lens, ops, memory);
  attn::SplitParams split{};
  if (c.splits) {
    constexpr int kSplits = 3;
    const attn::i64 rows = attn::i64{kSplits} * tokens * heads;
    split = {kSplits, tokens, static_cast<float*>(memory.upload(poisoned(Dtype::kF32, {rows, d}))),
             static_cast<float*>(memory.upload(poisoned(Dtype::kF32, {rows})))};
    if (c.joined) {
      const attn::i64 counters =
          attn::num_arrivals(p.num_requests, p.num_heads, p.num_kv_heads, p.max_query_len);
      split.arrivals = static_cast<int*>(memory.result(Tensor(Dtype::kI32, {counters})));
    }
  }
  if (c.splits && !c.saves) {
    ops.attend_splits(p, split);
    if (!c.joined) ops.combine_splits(p, split);
    return memory.results();
  }
  if (!c.saves) {
    ops.attend(p);
    return memory.results();
  }
  attn::Int8CacheWriteParams save{};
  save.key = static_cast<const signed char*>(memory.upload(drawn_codes({tokens, kKvHeads, d}, 51)));
  save.key_token_stride = save.value_token_stride = attn::i64{kKvHeads} * d;
  save.key_head_stride = save.value_head_stride = d;
  save.key_scale = static_cast<const float*>(memory.upload(drawn_scales({tokens, kKvHeads}, 52)));
  save.key_scale_token_stride = kKvHeads;
  save.key_scale_head_stride = 1;
  save.value_element = p.int8.value_element;
  save.value = memory.upload(c.values == Dtype::kI8 ? drawn_codes({tokens, kKvHeads, d}, 53)
                                                    : drawn_values({tokens, kKvHeads, d}, 53));
  save.key_cache = static_cast<signed char*>(key_cache);
  save.value_cache = value_cache;
  save.block_stride = p.kv.block_stride;
  save.slot_stride = p.kv.token_stride_key;
  save.head_stride = p.kv.head_stride_key;
  save.key_scale_cache = key_scales;
  save.scale_block_stride = p.kv.scale_block_stride;
  save.scale_slot_stride = p.kv.scale_slot_stride;
  save.scale_head_stride = p.kv.scale_head_stride;
  save.num_tokens = tokens;
  save.block_size = block_size;
  save.num_kv_heads = kKvHeads;
  save.head_size = d;
  save.block_table = p.kv.block_table;
  save.block_table_stride = p.kv.block_table_stride;
  save.query_start_loc = p.query_start_loc;
  save.seq_lens = p.seq_lens;
  save.num_requests = p.num_requests;
  if (c.splits) {
    ops.save_and_attend_splits_int8(save, p, split);
    if (!c.joined) ops.combine_splits(p, split);
    return memory.results();
  }
  ops.save_and_attend_int8(save, p);
  return memory.results();
}

inline std::vector<AttendCase> general_attend_cases() {
  using enum Dtype;
  return {{.name = "general f32 d64 soft cap, alibi, sinks",
           .query = kF32,
           .cache = kF32,
           .output = kF32,
           .head_size = 64,
           .v_head_size = 64,
           .soft_cap = 3.0f,
           .alibi = attn::Alibi::kKeyIndex,
           .has_sinks = true},
          {.name = "general d512 global key alibi",
           .head_size = 512,
           .v_head_size = 512,
           .alibi = attn::Alibi::kGlobalKeyIndex},
          {.name = "general f32 d36 splits of e4m3",
           .query = kF32,
           .cache = kE4M3,
           .output = kF32,
           .head_size = 36,
           .v_head_size = 36,
           .form = AttendForm::kSplits,
           .round_dequantized = 1},
          {.name = "general f32 segments",
           .query = kF32,
           .cache = kF32,
           .output = kF32,
           .form = AttendForm::kSegments,
           .query_lens = {1, 1, 0, 1},
           .context_lens = {0, 300, 0, 77},
           .has_sinks = true},
          {.name = "general e4m3 queries, e4m3 P",
           .query = kE4M3,
           .cache = kE4M3,
           .head_size = 80,
           .v_head_size = 80,
           .block_size = 0,
           .window_right = -1,
           .e4m3_probability = 1,
           .kernel = "general"},
          {.name = "general e4m3 queries d128 paged to f16",
           .query = kE4M3,
           .cache = kE4M3,
           .output = kF16,
           .has_large_queries = false},
          {.name = "general d35/21 ragged window ranges",
           .head_size = 35,
           .v_head_size = 21,
           .block_size = 0,
           .window_left = 20,
           .has_ranges = true},
          {.name = "general i8 per token and head, blocks of 8",
           .query = kF16,
           .cache = kI8,
           .output = kF16,
           .head_size = 64,
           .v_head_size = 64,
           .block_size = 8,
           .has_token_head_scales = true},
          {.name = "general e4m3 under sinks far above all scores",
           .query = kF16,
           .cache = kE4M3,
           .head_size = 36,
           .v_head_size = 36,
           .block_size = 8,
           .has_sinks = true,
           .has_large_queries = false,
           .sink_shift = 22.0f,
           .value_gain = 3e9f},
          {.name = "general d512 distance alibi",
           .head_size = 512,
           .v_head_size = 512,
           .alibi = attn::Alibi::kDistance,
           .softmax_scale = 0.03f}};
}

inline void add_general_attend_cases(std::vector<OperationCase>& cases) {
  using enum Dtype;
  using attn::MlaEntry;
  const auto tolerance_of = [](Dtype query, Dtype output) {
    if (query == kF32) return 5e-4;
    return output == kF16 ? 1e-2 : 4e-2;
  };
  for (const AttendCase& c : general_attend_cases()) {
    const double tolerance = c.e4m3_probability != 0 ? 0.1 : tolerance_of(c.query, c.output);
    cases.push_back({c.name, tolerance, [c](Ops& o) { return run_held(o, c); }, tolerance / 2});
  }
  const std::vector<MlaAttendCase> mla{
      {.name = "mla bf16"},
      {.name = "mla f16 splits", .query = kF16, .output = kF16, .form = MlaForm::kSplits},
      {.name = "mla bf16 plan", .form = MlaForm::kPlan, .heads = 16},
      {.name = "mla e4m3 cache plan", .format = MlaEntry::kE4M3, .form = MlaForm::kPlan},
      {.name = "mla e4m3 query", .query = kE4M3, .format = MlaEntry::kE4M3},
      {.name = "mla f32", .query = kF32, .output = kF32, .latent = 128, .rope = 32},
      {.name = "mla sparse", .form = MlaForm::kSparse},
      {.name = "mla sparse e4m3", .format = MlaEntry::kE4M3, .form = MlaForm::kSparse},
      {.name = "mla sparse e4m3 query",
       .query = kE4M3,
       .format = MlaEntry::kE4M3,
       .form = MlaForm::kSparse},
      {.name = "mla sparse fp8_ds_mla", .format = MlaEntry::kDsMla, .form = MlaForm::kSparse},
      {.name = "mla sparse fp8_ds_mla plan",
       .format = MlaEntry::kDsMla,
       .form = MlaForm::kSparsePlan,
       .heads = 64},
      {.name = "mla sparse fp8_model1_mla",
       .format = MlaEntry::kModel1,
       .form = MlaForm::kSparse,
       .latent = 448},
      {.name = "mla sparse fp8_model1_mla plan, values with their rope part",
       .format = MlaEntry::kModel1,
       .form = MlaForm::kSparsePlan,
       .heads = 64,
       .latent = 512,
       .rope = 0}};
  for (const MlaAttendCase& c : mla) {
    const double tolerance = tolerance_of(c.query, c.output);
    cases.push_back(
        {c.name, tolerance, [c](Ops& o) { return run_mla_attend(o, c); }, tolerance / 2});
  }
  for (const Int8AttendCase& c : std::vector<Int8AttendCase>{{kI8, 128},
                                                             {kBF16, 64, true},
                                                             {kF16, 72, false, true},
                                                             {kI8, 256, true},
                                                             {kI8, 64, true, true}}) {
    // P is rounded to the type of the values; int8 ones are multiplied as float16.
    const double tolerance = tolerance_of(kBF16, c.values == kBF16 ? kBF16 : kF16);
    cases.push_back({"int8 attention d" + std::to_string(c.head_size) + " values " +
                         std::string(dtype_name(c.values)),
                     tolerance, [c](Ops& o) { return run_int8_attend(o, c); }, tolerance / 2});
  }
}

}  // namespace attnbench::cuda
