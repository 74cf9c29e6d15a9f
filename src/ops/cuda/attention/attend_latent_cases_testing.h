// Small cases of kernels/attention/latent/latent.cuh and gathered.cuh, for whoever forces them:
// ragged lengths, rows without keys, all sizes of blocks and ways of loading the query, lists with
// holes, entries of codes, and all operations.
#pragma once

#include <algorithm>

#include "metadata/parts/decode_plan.h"
#include "ops/cuda/move/move_cases_testing.h"
#include "ops/cuda/testing/operation_cases_testing.h"
#include "ops/plan_rows.h"

namespace attnbench::cuda {

inline constexpr const char* kLatentKernel = "hopper_latent";

enum class LatentForm { kWhole, kSplits, kPlan };

struct LatentCase {
  std::string name;
  Dtype element = Dtype::kBF16;
  Dtype output = Dtype::kBF16;
  LatentForm form = LatentForm::kWhole;
  int heads = 16;
  int block_size = 64;
  std::vector<int> query_lens{1, 1, 1};
  std::vector<int> seq_lens{37, 128, 200};
  int parts = 3;          // of a plan, or splits
  int query_padding = 0;  // elements behind the heads of a token, a multiple of 8
  float softmax_scale = 0.05f;
  bool has_nan_in_last_key = false;  // of every request, in a column of its value
  bool has_known_weights = false;    // known_number(); the query is 1 in column 0, else 0
};

inline constexpr int kLatentEntry = 576;
inline constexpr int kLatentWidth = 512;

/// Number of an entry for weights that show how they are rounded, with scores kScoreStep apart.
/// Every 64th key has the largest score, so that maxima are the same in all tiles, splits and
/// realisations: its weight is 1, that of odd keys 1.055 / 8, that of other even ones 1.307 / 2^15.
/// In e4m3, times 256, these lose 5.2 % and 4.4 %, the latter as a subnormal number. All values are
/// positive, and columns from 256 on have those of the small weights alone, which are large there.
inline constexpr float kScoreStep = 2.0259f;
inline float known_number(attn::i64 key, attn::i64 column, float number) {
  const bool is_peak = key % 64 == 0;
  const bool is_small = !is_peak && key % 2 == 0;
  if (column == 0) return is_peak ? 8.0f : (is_small ? 3.0f : 7.0f);
  const float large = is_small ? 100.0f : 0.0f;
  return std::abs(number) * (column < kLatentWidth / 2 ? 1.0f : large);
}

/// Entries of the requests in shuffled blocks: what belongs to no key is NaN, and entries of the
/// table past a request's keys are garbage.
inline void set_latent_cache(attn::AttendParams& p, const LatentCase& c, CaseMemory& memory) {
  const int longest = *std::max_element(c.seq_lens.begin(), c.seq_lens.end());
  const int columns = longest / c.block_size + 2;
  const auto requests = static_cast<int>(c.seq_lens.size());
  Tensor cache = poisoned(c.element, {columns * requests, c.block_size, kLatentEntry});
  std::vector<int> table;
  attn::i64 tokens = 0;
  for (const int len : c.seq_lens) tokens += len;
  const std::vector<float>& numbers =
      normal_numbers(61, static_cast<std::size_t>(tokens * kLatentEntry));
  std::size_t next = 0;
  for (int b = 0; b < requests; ++b) {
    for (int i = 0; i < columns; ++i) {
      const int block = (columns - 1 - i) * requests + b;
      const int live =
          std::min(c.block_size, c.seq_lens[static_cast<std::size_t>(b)] - i * c.block_size);
      table.push_back(live > 0 ? block : (i % 2 == 0 ? -7 : 1 << 30));
      const attn::i64 first = attn::i64{block} * c.block_size * kLatentEntry;
      for (attn::i64 at = 0; at < attn::i64{std::max(live, 0)} * kLatentEntry; ++at) {
        const float number = numbers[next++];
        const attn::i64 key = attn::i64{i} * c.block_size + at / kLatentEntry;
        cache.set(first + at,
                  c.has_known_weights ? known_number(key, at % kLatentEntry, number) : number);
      }
      if (c.has_nan_in_last_key && live > 0 && live <= c.block_size &&
          c.seq_lens[static_cast<std::size_t>(b)] == i * c.block_size + live) {
        cache.set(first + attn::i64{live - 1} * kLatentEntry + 300,
                  std::numeric_limits<float>::quiet_NaN());
      }
    }
  }
  p.kv.element = element_of(c.element);
  p.kv.key = p.kv.value = memory.upload(cache);
  p.kv.token_stride_key = p.kv.token_stride_value = kLatentEntry;
  p.kv.block_stride = attn::i64{c.block_size} * kLatentEntry;
  p.kv.block_size = c.block_size;
  p.kv.block_table = memory.upload(table);
  p.kv.block_table_stride = columns;
}

inline attn::PlanParams latent_plan(const LatentCase& c, const std::vector<int>& starts,
                                    CaseMemory& memory) {
  const DecodePlan plan = plan_decode(c.seq_lens, c.parts, 0);
  const std::vector<attn::i64> rows = plan_partial_start_loc(plan.num_splits, starts);
  attn::PlanParams params{};
  params.num_parts = c.parts;
  params.parts = static_cast<const int*>(
      memory.upload(plan.parts.data(), plan.parts.size() * sizeof(DecodePart)));
  params.num_splits = memory.upload(plan.num_splits);
  params.partial_start_loc = memory.upload(rows);
  const attn::i64 partials = std::max<attn::i64>(1, rows.back()) * c.heads;
  params.partial_output =
      static_cast<float*>(memory.upload(poisoned(Dtype::kF32, {partials, kLatentWidth})));
  params.partial_lse = static_cast<float*>(memory.upload(poisoned(Dtype::kF32, {partials})));
  return params;
}

/// Attention over all keys in the form of the case.
inline void attend_latents(Ops& ops, const attn::AttendParams& p, const LatentCase& c,
                           const std::vector<int>& starts, CaseMemory& memory) {
  const int tokens = starts.back();
  if (c.form == LatentForm::kWhole) {
    ops.attend(p);
  } else if (c.form == LatentForm::kPlan) {
    const attn::PlanParams plan = latent_plan(c, starts, memory);
    ops.attend_plan(p, plan);
    ops.combine_plan(p, plan);
  } else {
    const attn::i64 rows = attn::i64{c.parts} * tokens * c.heads;
    const attn::SplitParams split{
        c.parts, tokens,
        static_cast<float*>(memory.upload(poisoned(Dtype::kF32, {rows, kLatentWidth}))),
        static_cast<float*>(memory.upload(poisoned(Dtype::kF32, {rows})))};
    ops.attend_splits(p, split);
    ops.combine_splits(p, split);
  }
}

inline std::vector<Tensor> run_latent_attend(Ops& ops, const LatentCase& c) {
  CaseMemory memory(ops);
  std::vector<int> starts{0};
  for (const int len : c.query_lens) starts.push_back(starts.back() + len);
  const int tokens = starts.back();
  const int query_row = c.heads * kLatentEntry + c.query_padding;
  attn::AttendParams p{};
  p.query_element = element_of(c.element);
  p.output_element = element_of(c.output);
  p.query = memory.upload(drawn(c.element, {tokens, query_row}, 62, false));
  p.query_token_stride = query_row;
  p.query_head_stride = kLatentEntry;
  p.output = memory.result(poisoned(c.output, {tokens + 1, c.heads, kLatentWidth}));
  p.output_token_stride = attn::i64{c.heads} * kLatentWidth;
  p.output_head_stride = kLatentWidth;
  p.lse = static_cast<float*>(memory.result(poisoned(Dtype::kF32, {c.heads, tokens + 1})));
  p.lse_stride = tokens + 1;
  p.query_start_loc = memory.upload(starts);
  p.seq_lens = memory.upload(c.seq_lens);
  p.num_requests = static_cast<int>(c.seq_lens.size());
  p.max_query_len = *std::max_element(c.query_lens.begin(), c.query_lens.end());
  p.num_heads = c.heads;
  p.num_kv_heads = 1;
  p.head_size = kLatentEntry;
  p.v_head_size = kLatentWidth;
  p.score.softmax_scale = c.softmax_scale;
  p.score.window_left = -1;
  p.score.window_right = 0;
  set_latent_cache(p, c, memory);
  attend_latents(ops, p, c, starts, memory);
  return memory.results();
}

inline std::vector<LatentCase> latent_cases() {
  using enum Dtype;
  return {
      {.name = "latent bf16, a half-empty tile", .query_lens = {1, 0, 1}, .seq_lens = {37, 5, 64}},
      {.name = "latent bf16, odd tiles, no keys",
       .query_lens = {1, 1, 1, 1},
       .seq_lens = {0, 65, 192, 385}},
      {.name = "latent f16 splits, 64 heads of two tokens",
       .element = kF16,
       .output = kF16,
       .form = LatentForm::kSplits,
       .heads = 64,
       .query_lens = {2, 1},
       .seq_lens = {130, 300}},
      {.name = "latent bf16 plan, 128 heads",
       .form = LatentForm::kPlan,
       .heads = 128,
       .query_lens = {1, 1, 1},
       .seq_lens = {200, 1, 333}},
      {.name = "latent bf16 plan, blocks of 16, four tokens of 16 heads",
       .form = LatentForm::kPlan,
       .block_size = 16,
       .query_lens = {4, 2, 3, 4},
       .seq_lens = {66, 2, 161, 3},
       .parts = 4},
      {.name = "latent bf16, blocks of 32, 40 heads",
       .heads = 40,
       .block_size = 32,
       .query_lens = {2, 1},
       .seq_lens = {129, 95}},
      {.name = "latent f16 to f32, blocks of 128, 8 heads",
       .element = kF16,
       .output = kF32,
       .heads = 8,
       .block_size = 128,
       .query_lens = {1, 3},
       .seq_lens = {450, 193}},
      {.name = "latent bf16 splits, copied queries of 5 heads",
       .form = LatentForm::kSplits,
       .heads = 5,
       .query_lens = {1, 2, 9},
       .seq_lens = {70, 2, 140}},
      {.name = "latent bf16, queries in strides",
       .heads = 16,
       .query_lens = {9, 1},
       .seq_lens = {71, 150},
       .query_padding = 64},
      {.name = "latent bf16, NaN in a value that earlier tokens do not see",
       .query_lens = {4, 2, 3},
       .seq_lens = {66, 128, 129},
       .has_nan_in_last_key = true},
      {.name = "latent bf16, one key outweighs the others",
       .seq_lens = {100, 256, 31},
       .softmax_scale = 4.0f},
      {.name = "latent bf16 plan, few rows, no keys, a request without a query",
       .form = LatentForm::kPlan,
       .query_lens = {1, 1, 0, 1, 1},
       .seq_lens = {600, 0, 70, 130, 20},
       .parts = 4},
      {.name = "latent f16 plan to f32, few rows, two tokens of 8 heads, blocks of 128, NaN",
       .element = kF16,
       .output = kF32,
       .form = LatentForm::kPlan,
       .heads = 8,
       .block_size = 128,
       .query_lens = {2, 1, 2},
       .seq_lens = {66, 128, 700},
       .has_nan_in_last_key = true},
      {.name = "latent bf16 plan, few rows, copied queries of 5 heads, blocks of 16",
       .form = LatentForm::kPlan,
       .heads = 5,
       .block_size = 16,
       .query_lens = {3, 1, 2},
       .seq_lens = {70, 2, 440},
       .parts = 2}};
}

/// Tolerances as those of other cases of MLA.
inline void add_latent_attend_cases(std::vector<OperationCase>& cases) {
  for (const LatentCase& c : latent_cases()) {
    const double tolerance = c.element == Dtype::kF16 ? 1e-2 : 4e-2;
    cases.push_back(
        {c.name, tolerance, [c](Ops& o) { return run_latent_attend(o, c); }, tolerance / 2});
  }
}

inline constexpr const char* kGatheredKernel = "hopper_gathered";
inline constexpr const char* kLatentCodesKernel = "hopper_latent_codes";

/// What hopper_gathered does: `of` says everything but the entries and the lists. With lists its
/// seq_lens are the lengths of the lists of a request's tokens, its form is kWhole or kPlan.
struct GatheredCase {
  LatentCase of;
  attn::MlaEntry format = attn::MlaEntry::kCopy;
  bool is_listed = true;
  Dtype query = Dtype::kBF16;
  bool is_rounded = false;
  bool has_lengths = true;  // else all lists are as long as the longest
  int block_padding = 0;    // entries between the blocks that lists name
  bool e4m3_probability = false;
};

inline constexpr float kCodeScale = 0.6f;

/// Entries in e4m3, those of requests in shuffled blocks as set_latent_cache() has them.
inline void set_code_cache(attn::AttendParams& p, const GatheredCase& c, CaseMemory& memory) {
  LatentCase of = c.of;
  of.element = Dtype::kE4M3;
  set_latent_cache(p, of, memory);
  p.kv.k_scale = p.kv.v_scale = memory.upload(std::vector<float>{kCodeScale});
  p.kv.round_dequantized = c.is_rounded ? 1 : 0;
}

/// A cache of which lists name some slots, with doubles and holes; entries that no list names are
/// NaN where that is possible.
inline attn::SparseParams set_listed_cache(attn::AttendParams& p, const GatheredCase& c,
                                           const std::vector<int>& starts, CaseMemory& memory) {
  constexpr int kBlocks = 5;
  const int slots = kBlocks * c.of.block_size;
  const int topk = *std::max_element(c.of.seq_lens.begin(), c.of.seq_lens.end());
  std::mt19937 random(63);
  std::vector<int> listed;
  std::vector<int> lengths;
  for (std::size_t b = 0; b < c.of.seq_lens.size(); ++b) {
    for (int token = starts[b]; token < starts[b + 1]; ++token) {
      lengths.push_back(c.of.seq_lens[b]);
      for (int i = 0; i < topk; ++i) {
        const auto kind = random() % 11;
        const int slot = static_cast<int>(random() % static_cast<unsigned>(slots)) / 3 * 3;
        // The first list of three has holes only, and so has the first tile of the next one.
        const bool is_hole = kind == 0 || token % 3 == 2 || (token % 3 == 1 && i < 70);
        listed.push_back(is_hole ? -1 : kind == 1 ? slots + 3 : slot);
      }
    }
  }
  const int rows_of_block = c.of.block_size + c.block_padding;
  Dtype element = c.of.element;
  if (c.format == attn::MlaEntry::kE4M3) element = Dtype::kE4M3;
  if (c.format == attn::MlaEntry::kDsMla) {
    p.kv.element = attn::Element::kU8;
    p.kv.key = memory.upload(drawn_ds_mla(kBlocks * rows_of_block, 64));
    p.kv.token_stride_key = attn::kDsMlaEntryBytes;
  } else {
    Tensor cache = poisoned(element, {kBlocks * rows_of_block, kLatentEntry});
    std::normal_distribution<float> normal;
    for (int slot = 0; slot < slots; slot += 3) {
      const attn::i64 row = slot / c.of.block_size * rows_of_block + slot % c.of.block_size;
      for (int i = 0; i < kLatentEntry; ++i) {
        cache.set(row * kLatentEntry + i, normal(random));
      }
    }
    p.kv.element = element_of(element);
    p.kv.key = memory.upload(cache);
    p.kv.token_stride_key = kLatentEntry;
  }
  if (c.format == attn::MlaEntry::kE4M3) p.kv.k_scale = memory.upload(std::vector<float>{0.6f});
  p.kv.block_size = c.of.block_size;
  p.kv.block_stride = rows_of_block * p.kv.token_stride_key;
  attn::SparseParams sparse{};
  sparse.format = c.format;
  sparse.slots = memory.upload(listed);
  sparse.slots_stride = sparse.topk = topk;
  sparse.topk_length = c.has_lengths ? memory.upload(lengths) : nullptr;
  sparse.num_slots = slots;
  return sparse;
}

inline std::vector<Tensor> run_gathered_attend(Ops& ops, const GatheredCase& c) {
  CaseMemory memory(ops);
  std::vector<int> starts{0};
  for (const int len : c.of.query_lens) starts.push_back(starts.back() + len);
  const int tokens = starts.back();
  const int query_row = c.of.heads * kLatentEntry + c.of.query_padding;
  attn::AttendParams p{};
  p.query_element = element_of(c.query);
  p.output_element = element_of(c.of.output);
  Tensor query = drawn(c.query, {tokens, query_row}, 62, false);
  for (attn::i64 i = 0; c.of.has_known_weights && i < query.num_elements(); ++i) {
    query.set(i, i % query_row % kLatentEntry == 0 ? 1.0f : 0.0f);
  }
  p.query = memory.upload(query);
  p.query_token_stride = query_row;
  p.query_head_stride = kLatentEntry;
  p.output = memory.result(poisoned(c.of.output, {tokens + 1, c.of.heads, kLatentWidth}));
  p.output_token_stride = attn::i64{c.of.heads} * kLatentWidth;
  p.output_head_stride = kLatentWidth;
  p.lse = static_cast<float*>(memory.result(poisoned(Dtype::kF32, {c.of.heads, tokens + 1})));
  p.lse_stride = tokens + 1;
  p.query_start_loc = memory.upload(starts);
  p.seq_lens = memory.upload(c.of.seq_lens);
  p.num_requests = static_cast<int>(c.of.seq_lens.size());
  p.max_query_len = *std::max_element(c.of.query_lens.begin(), c.of.query_lens.end());
  p.num_heads = c.of.heads;
  p.num_kv_heads = 1;
  p.head_size = kLatentEntry;
  p.v_head_size = kLatentWidth;
  p.e4m3_probability = c.e4m3_probability ? 1 : 0;
  p.score.softmax_scale = c.of.softmax_scale;
  p.score.window_left = -1;
  p.score.window_right = 0;
  if (c.is_listed) {
    const attn::SparseParams sparse = set_listed_cache(p, c, starts, memory);
    if (c.of.form == LatentForm::kWhole) {
      ops.attend_sparse(p, sparse);
    } else {
      const attn::PlanParams plan = latent_plan(c.of, starts, memory);
      ops.attend_sparse_plan(p, sparse, plan);
      ops.combine_plan(p, plan);
    }
    return memory.results();
  }
  set_code_cache(p, c, memory);
  attend_latents(ops, p, c.of, starts, memory);
  return memory.results();
}

inline std::vector<GatheredCase> gathered_cases() {
  using enum Dtype;
  using attn::MlaEntry;
  return {{.of = {.name = "listed bf16, lists of every length",
                  .query_lens = {1, 2, 1, 0, 1},
                  .seq_lens = {300, 129, 64, 7, 1}}},
          {.of = {.name = "listed f16 to f32, 96 heads, blocks of 5",
                  .element = kF16,
                  .output = kF32,
                  .heads = 96,
                  .block_size = 5,
                  .query_lens = {2},
                  .seq_lens = {140}},
           .query = kF16,
           .has_lengths = false},
          {.of = {.name = "listed bf16 plan, copied queries of 5 heads",
                  .form = LatentForm::kPlan,
                  .heads = 5,
                  .query_lens = {2, 2, 2},
                  .seq_lens = {256, 200, 256},
                  .parts = 4}},
          {.of = {.name = "listed fp8_ds_mla",
                  .query_lens = {1, 3, 1},
                  .seq_lens = {70, 200, 256},
                  .softmax_scale = 0.002f},
           .format = MlaEntry::kDsMla},
          {.of = {.name = "listed fp8_ds_mla plan, 128 heads of two tokens",
                  .form = LatentForm::kPlan,
                  .heads = 128,
                  .query_lens = {2, 2},
                  .seq_lens = {192, 192},
                  .parts = 2,
                  .softmax_scale = 0.002f},
           .format = MlaEntry::kDsMla,
           .has_lengths = false},
          {.of = {.name = "listed fp8_ds_mla, 96 heads",
                  .heads = 96,
                  .query_lens = {1, 3, 1},
                  .seq_lens = {70, 200, 256},
                  .softmax_scale = 0.002f},
           .format = MlaEntry::kDsMla},
          {.of = {.name = "listed bf16, 24 heads",
                  .heads = 24,
                  .query_lens = {1, 2, 1},
                  .seq_lens = {300, 129, 64}},
           .block_padding = 3},
          {.of = {.name = "listed e4m3, 32 heads",
                  .heads = 32,
                  .query_lens = {1, 2},
                  .seq_lens = {100, 130}},
           .format = MlaEntry::kE4M3},
          {.of = {.name = "listed e4m3, copied queries of 100 heads",
                  .heads = 100,
                  .query_lens = {1, 2},
                  .seq_lens = {130, 100}},
           .format = MlaEntry::kE4M3},
          {.of = {.name = "e4m3 entries, bf16 queries, odd tiles, no keys",
                  .query_lens = {1, 1, 3, 1},
                  .seq_lens = {0, 65, 192, 385}},
           .format = MlaEntry::kE4M3,
           .is_listed = false},
          {.of = {.name = "e4m3 entries and queries, plan, blocks of 16",
                  .form = LatentForm::kPlan,
                  .block_size = 16,
                  .query_lens = {4, 2, 3},
                  .seq_lens = {66, 2, 161},
                  .parts = 4,
                  .softmax_scale = 0.005f},
           .format = MlaEntry::kE4M3,
           .is_listed = false,
           .query = kE4M3},
          {.of = {.name = "e4m3 entries rounded to f16, splits, 64 heads, blocks of 7",
                  .element = kF16,
                  .output = kF16,
                  .form = LatentForm::kSplits,
                  .heads = 64,
                  .block_size = 7,
                  .query_lens = {2, 1},
                  .seq_lens = {130, 300}},
           .format = MlaEntry::kE4M3,
           .is_listed = false,
           .query = kF16,
           .is_rounded = true},
          {.of = {.name = "e4m3 entries, NaN in a value that earlier tokens do not see",
                  .query_lens = {4, 2, 3},
                  .seq_lens = {66, 128, 129},
                  .has_nan_in_last_key = true},
           .format = MlaEntry::kE4M3,
           .is_listed = false},
          {.of = {.name = "e4m3 entries and queries, one token, odd tiles, no keys",
                  .query_lens = {1, 1, 0, 1},
                  .seq_lens = {0, 65, 192, 385},
                  .softmax_scale = 0.005f},
           .format = MlaEntry::kE4M3,
           .is_listed = false,
           .query = kE4M3},
          {.of = {.name = "e4m3 entries, splits to f32, two tokens of 8 heads, NaN",
                  .output = kF32,
                  .form = LatentForm::kSplits,
                  .heads = 8,
                  .query_lens = {2, 1, 2},
                  .seq_lens = {66, 128, 300},
                  .has_nan_in_last_key = true},
           .format = MlaEntry::kE4M3,
           .is_listed = false},
          {.of = {.name = "e4m3 entries, one token of 128 heads, splits, NaN",
                  .form = LatentForm::kSplits,
                  .heads = 128,
                  .query_lens = {1, 0, 1},
                  .seq_lens = {65, 40, 300},
                  .has_nan_in_last_key = true},
           .format = MlaEntry::kE4M3,
           .is_listed = false},
          {.of = {.name = "e4m3 entries and queries, one token of 96 heads, plan",
                  .form = LatentForm::kPlan,
                  .heads = 96,
                  .query_lens = {1, 1, 1},
                  .seq_lens = {400, 2, 161},
                  .parts = 4,
                  .softmax_scale = 0.005f},
           .format = MlaEntry::kE4M3,
           .is_listed = false,
           .query = kE4M3},
          {.of = {.name = "e4m3 entries and queries, plan, one token",
                  .output = kF16,
                  .form = LatentForm::kPlan,
                  .query_lens = {1, 1, 1},
                  .seq_lens = {400, 2, 161},
                  .parts = 4,
                  .softmax_scale = 0.005f},
           .format = MlaEntry::kE4M3,
           .is_listed = false,
           .query = kE4M3},
          {.of = {.name = "e4m3 entries and queries, splits to f32, two tokens of 8 heads, NaN",
                  .output = kF32,
                  .form = LatentForm::kSplits,
                  .heads = 8,
                  .query_lens = {2, 1, 2},
                  .seq_lens = {66, 128, 700},
                  .softmax_scale = 0.005f,
                  .has_nan_in_last_key = true},
           .format = MlaEntry::kE4M3,
           .is_listed = false,
           .query = kE4M3},
          {.of = {.name = "e4m3 entries and queries, one token, many tiles",
                  .query_lens = {1, 1},
                  .seq_lens = {1500, 700},
                  .softmax_scale = 0.005f},
           .format = MlaEntry::kE4M3,
           .is_listed = false,
           .query = kE4M3},
          {.of = {.name = "e4m3 entries and queries, two tokens of 16 heads, many tiles",
                  .query_lens = {2, 1, 2},
                  .seq_lens = {500, 64, 1030},
                  .softmax_scale = 0.005f,
                  .has_nan_in_last_key = true},
           .format = MlaEntry::kE4M3,
           .is_listed = false,
           .query = kE4M3},
          {.of = {.name = "e4m3 entries and queries, three tokens of 40 heads, splits, NaN",
                  .form = LatentForm::kSplits,
                  .heads = 40,
                  .query_lens = {3, 1, 2, 1},
                  .seq_lens = {500, 0, 129, 1030},
                  .softmax_scale = 0.005f,
                  .has_nan_in_last_key = true},
           .format = MlaEntry::kE4M3,
           .is_listed = false,
           .query = kE4M3},
          {.of = {.name = "e4m3 entries and queries, 64 heads, odd tiles, blocks of 128",
                  .output = kF32,
                  .heads = 64,
                  .block_size = 128,
                  .query_lens = {1, 1, 2},
                  .seq_lens = {300, 64, 31},
                  .softmax_scale = 0.005f},
           .format = MlaEntry::kE4M3,
           .is_listed = false,
           .query = kE4M3},
          {.of = {.name = "e4m3 entries and queries, one key outweighs the others",
                  .block_size = 32,
                  .seq_lens = {100, 256, 31},
                  .softmax_scale = 0.03f},
           .format = MlaEntry::kE4M3,
           .is_listed = false,
           .query = kE4M3},
          {.of = {.name = "e4m3 entries, one key outweighs the others",
                  .seq_lens = {100, 256, 31},
                  .softmax_scale = 4.0f},
           .format = MlaEntry::kE4M3,
           .is_listed = false}};
}

/// The same with P in e4m3, by weights that show it.
inline GatheredCase with_e4m3_probability(GatheredCase c) {
  c.of.name += ", e4m3 P";
  c.of.has_known_weights = c.e4m3_probability = true;
  c.of.softmax_scale = kScoreStep / kCodeScale;
  return c;
}
inline constexpr double kKnownTolerance = 1e-2;
inline void add_gathered_case(std::vector<OperationCase>& cases, const GatheredCase& c) {
  const double tolerance = c.of.has_known_weights ? kKnownTolerance : 4e-2;
  cases.push_back({c.of.name, tolerance, [c](Ops& o) { return run_gathered_attend(o, c); },
                   c.of.has_known_weights ? 0 : tolerance / 2});
}
/// Those that hopper_latent_codes takes, with P in 16 bits and in e4m3.
inline void add_latent_codes_cases(std::vector<OperationCase>& cases) {
  for (const GatheredCase& c : gathered_cases()) {
    if (c.query != Dtype::kE4M3 || c.is_listed) continue;
    add_gathered_case(cases, c);
    add_gathered_case(cases, with_e4m3_probability(c));
  }
}
inline void add_gathered_attend_cases(std::vector<OperationCase>& cases) {
  for (const GatheredCase& c : gathered_cases()) add_gathered_case(cases, c);
}

}  // namespace attnbench::cuda
