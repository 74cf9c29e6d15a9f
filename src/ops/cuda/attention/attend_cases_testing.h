// Small cases of the attention operations: every kernel family, head size, format and feature.
#pragma once

#include "ops/cuda/attention/attend_runs_testing.h"

namespace attnbench::cuda {

/// Of many query rows.
inline std::vector<AttendCase> prefill_attend_cases() {
  using enum Dtype;
  return {
      {.name = "prefill d128 causal"},
      {.name = "prefill d128 ragged window", .block_size = 0, .window_left = 20},
      {.name = "prefill d32 f16",
       .query = kF16,
       .cache = kF16,
       .output = kF16,
       .head_size = 32,
       .v_head_size = 32,
       .block_size = 0,
       .window_right = -1,
       .has_sinks = true},
      {.name = "prefill d64 soft cap and alibi",
       .head_size = 64,
       .v_head_size = 64,
       .soft_cap = 3.0f,
       .alibi = attn::Alibi::kContextRelative},
      {.name = "prefill d128 ragged key alibi", .block_size = 0, .alibi = attn::Alibi::kKeyIndex},
      {.name = "prefill d128 global key alibi both ways",
       .window_right = -1,
       .alibi = attn::Alibi::kGlobalKeyIndex},
      {.name = "prefill d64 global sqrt alibi",
       .head_size = 64,
       .v_head_size = 64,
       .alibi = attn::Alibi::kGlobalSqrt},
      {.name = "prefill d64/128 ragged", .head_size = 64, .block_size = 0},
      {.name = "prefill d112", .head_size = 112, .v_head_size = 112},
      {.name = "prefill d72 ranges", .head_size = 72, .v_head_size = 72, .has_ranges = true},
      {.name = "prefill d96 f16 block 48",
       .query = kF16,
       .cache = kF16,
       .output = kF16,
       .head_size = 96,
       .v_head_size = 96,
       .block_size = 48},
      {.name = "prefill d160", .head_size = 160, .v_head_size = 160, .block_size = 32},
      {.name = "prefill d192/128 to f32", .output = kF32, .head_size = 192, .block_size = 0},
      {.name = "prefill d256 sqrt alibi",
       .head_size = 256,
       .v_head_size = 256,
       .alibi = attn::Alibi::kSqrt},
      {.name = "prefill e4m3 rounded", .cache = kE4M3, .round_dequantized = 1},
      {.name = "prefill e5m2 d80 f16",
       .query = kF16,
       .cache = kE5M2,
       .output = kF16,
       .head_size = 80,
       .v_head_size = 80},
      {.name = "prefill i8 per token and head", .cache = kI8, .has_token_head_scales = true},
      // Why no large queries: tensor cores of SM 9.0 keep 13 bits of sums of e4m3 products.
      {.name = "prefill e4m3 queries window",
       .query = kE4M3,
       .cache = kE4M3,
       .window_left = 40,
       .has_large_queries = false},
      {.name = "prefill e4m3 queries d80 ragged e5m2",
       .query = kE4M3,
       .cache = kE5M2,
       .output = kF16,
       .head_size = 80,
       .v_head_size = 80,
       .block_size = 0,
       .window_right = -1},
      {.name = "prefill to e4m3", .output = kE4M3, .output_scale = 0.25f},
      {.name = "prefill e4m3 under sinks far above all scores",
       .cache = kE4M3,
       .has_sinks = true,
       .has_large_queries = false,
       .sink_shift = 22.0f,
       .value_gain = 3e9f,
       .kernel = "prefill"},
      {.name = "prefill e4m3 per token and head, a huge scale that one row sees",
       .cache = kE4M3,
       .has_token_head_scales = true,
       .has_large_queries = false,
       .last_value_scale = 1e20f}};
}

/// Of few query rows, whole or by parts.
inline std::vector<AttendCase> decode_attend_cases() {
  using enum Dtype;
  std::vector<AttendCase> cases{
      {.name = "decode d128"},
      {.name = "decode d192", .head_size = 192, .v_head_size = 192},
      {.name = "decode d64 f16 distance alibi",
       .query = kF16,
       .cache = kF16,
       .output = kF16,
       .head_size = 64,
       .v_head_size = 64,
       .alibi = attn::Alibi::kDistance},
      {.name = "decode d128 global distance alibi, window",
       .window_left = 30,
       .window_right = -1,
       .alibi = attn::Alibi::kGlobalDistance},
      {.name = "decode d80 window and sinks",
       .head_size = 80,
       .v_head_size = 80,
       .window_left = 30,
       .has_sinks = true},
      {.name = "decode d256 soft cap", .head_size = 256, .v_head_size = 256, .soft_cap = 5.0f},
      {.name = "decode negative scale", .head_size = 96, .v_head_size = 40, .softmax_scale = -0.1f},
      {.name = "splits d128", .form = AttendForm::kSplits},
      {.name = "splits e4m3 rounded",
       .cache = kE4M3,
       .form = AttendForm::kSplits,
       .round_dequantized = 1},
      {.name = "splits e5m2 d72",
       .cache = kE5M2,
       .head_size = 72,
       .v_head_size = 72,
       .form = AttendForm::kSplits},
      {.name = "splits d192/128", .head_size = 192, .form = AttendForm::kSplits},
      {.name = "splits i8 per token and head",
       .cache = kI8,
       .form = AttendForm::kSplits,
       .has_token_head_scales = true},
      {.name = "splits e4m3 d256 per token and head",
       .cache = kE4M3,
       .head_size = 256,
       .v_head_size = 256,
       .form = AttendForm::kSplits,
       .has_token_head_scales = true},
      {.name = "splits e4m3 d80 soft cap per token and head",
       .cache = kE4M3,
       .head_size = 80,
       .v_head_size = 80,
       .form = AttendForm::kSplits,
       .soft_cap = 5.0f,
       .has_token_head_scales = true},
      {.name = "decode i8 d72 per token and head",
       .cache = kI8,
       .head_size = 72,
       .v_head_size = 72,
       .has_token_head_scales = true},
      {.name = "segments i8 d64 f16 window per token and head",
       .query = kF16,
       .cache = kI8,
       .output = kF16,
       .head_size = 64,
       .v_head_size = 64,
       .form = AttendForm::kSegments,
       .window_left = 50,
       .has_token_head_scales = true},
      {.name = "decode e4m3 queries", .query = kE4M3, .cache = kE4M3, .has_large_queries = false},
      {.name = "splits e4m3 queries d72 sinks",
       .query = kE4M3,
       .cache = kE4M3,
       .head_size = 72,
       .v_head_size = 72,
       .form = AttendForm::kSplits,
       .has_sinks = true},
      {.name = "splits e4m3 under sinks far above all scores",
       .cache = kE4M3,
       .form = AttendForm::kSplits,
       .has_sinks = true,
       .has_large_queries = false,
       .sink_shift = 22.0f,
       .value_gain = 3e9f},
      {.name = "segments f16 e4m3 under sinks far above all scores",
       .query = kF16,
       .cache = kE4M3,
       .form = AttendForm::kSegments,
       .has_sinks = true,
       .has_large_queries = false,
       .sink_shift = 22.0f,
       .value_gain = 3e9f},
      {.name = "decode i8 per token and head, a huge scale that one row sees",
       .cache = kI8,
       .has_token_head_scales = true,
       .has_large_queries = false,
       .last_value_scale = 1e20f},
      {.name = "segments d128 key alibi",
       .form = AttendForm::kSegments,
       .alibi = attn::Alibi::kKeyIndex},
      {.name = "segments d160 f16",
       .query = kF16,
       .cache = kF16,
       .output = kF16,
       .head_size = 160,
       .v_head_size = 160,
       .form = AttendForm::kSegments,
       .has_sinks = true}};
  for (AttendCase& c : cases) {
    if (c.form == AttendForm::kSegments) {
      c.query_lens = {1, 1, 0, 1};
    } else {
      c.query_lens = {1, 1, 0, 3};
    }
    c.context_lens = {0, 300, 0, 77};
    c.group = 7;
  }
  return cases;
}

/// Of at most 8 rows, whose products are transposed.
inline std::vector<AttendCase> single_row_attend_cases() {
  using enum Dtype;
  std::vector<AttendCase> cases{
      {.name = "decode of few rows d256 soft cap",
       .head_size = 256,
       .v_head_size = 256,
       .soft_cap = 5.0f},
      {.name = "decode of few rows f16 ragged d80 e5m2 window",
       .query = kF16,
       .cache = kE5M2,
       .output = kF16,
       .head_size = 80,
       .v_head_size = 80,
       .block_size = 0,
       .window_left = 50},
      {.name = "splits of few rows e4m3 d256 per token and head, distance alibi",
       .cache = kE4M3,
       .head_size = 256,
       .v_head_size = 256,
       .form = AttendForm::kSplits,
       .alibi = attn::Alibi::kDistance,
       .has_token_head_scales = true}};
  for (AttendCase& c : cases) {
    c.query_lens = {1, 1, 0, 1};
    c.context_lens = {0, 300, 0, 77};
    c.group = 7;
  }
  return cases;
}

/// More CTAs than multiprocessors, two of which then share one.
inline std::vector<AttendCase> crowd_attend_cases() {
  using enum Dtype;
  std::vector<AttendCase> cases{
      {.name = "decode of many requests"},
      {.name = "decode e4m3 of many requests", .cache = kE4M3},
      {.name = "decode i8 of many requests", .cache = kI8, .has_token_head_scales = true}};
  for (AttendCase& c : cases) {
    c.query_lens.assign(80, 1);
    c.context_lens.assign(80, 0);
    for (std::size_t b = 0; b < 80; ++b) c.context_lens[b] = static_cast<int>(b * 37 % 150);
  }
  return cases;
}

/// Families, head sizes, formats and features, each at least once.
inline std::vector<AttendCase> attend_cases() {
  std::vector<AttendCase> cases = prefill_attend_cases();
  for (const auto& more :
       {decode_attend_cases(), single_row_attend_cases(), crowd_attend_cases()}) {
    cases.insert(cases.end(), more.begin(), more.end());
  }
  return cases;
}

/// Splits that are joined, and parts of a plan: by the kernels of decode/forms.cuh as far as they
/// fit.
inline std::vector<AttendCase> decode_form_cases() {
  using enum Dtype;
  using enum AttendForm;
  std::vector<AttendCase> cases{
      {.name = "joined by a cluster d128", .form = kJoined},
      {.name = "joined by a cluster i8 per token and head",
       .cache = kI8,
       .form = kJoined,
       .parts = 8,
       .has_token_head_scales = true},
      {.name = "joined by a cluster e4m3 d80 key alibi and sinks",
       .cache = kE4M3,
       .head_size = 80,
       .v_head_size = 80,
       .form = kJoined,
       .parts = 5,
       .alibi = attn::Alibi::kKeyIndex,
       .has_sinks = true},
      {.name = "joined by the last CTA d128", .form = kJoined, .parts = 20},
      {.name = "joined by the last CTA f16 d64/256 window",
       .query = kF16,
       .cache = kF16,
       .output = kF16,
       .head_size = 64,
       .v_head_size = 256,
       .form = kJoined,
       .parts = 9,
       .window_left = 60},
      {.name = "joined by a launch of its own, f32",
       .query = kF32,
       .cache = kF32,
       .output = kF32,
       .form = kJoined,
       .has_large_queries = false},
      {.name = "planned d128", .form = kPlanned, .parts = 4},
      {.name = "planned e4m3 per token and head, sinks",
       .cache = kE4M3,
       .form = kPlanned,
       .parts = 7,
       .has_sinks = true,
       .has_token_head_scales = true},
      {.name = "planned f16 d72 distance alibi",
       .query = kF16,
       .cache = kF16,
       .output = kF16,
       .head_size = 72,
       .v_head_size = 72,
       .form = kPlanned,
       .parts = 40,
       .alibi = attn::Alibi::kDistance}};
  for (AttendCase& c : cases) {
    c.query_lens = {1, 1, 0, 3};
    c.context_lens = {0, 300, 0, 77};
    c.group = 7;
  }
  // At most 8 rows, whose products are transposed.
  for (const std::size_t i : {0, 3, 6}) {
    AttendCase c = cases[i];
    c.name += ", few rows";
    c.query_lens = {1, 1, 0, 1};
    cases.push_back(c);
  }
  return cases;
}

/// Decodes of 32 to 128 rows, for whoever allows tiles of as many ("decode:rows=128").
inline std::vector<AttendCase> many_row_cases() {
  using enum Dtype;
  using enum AttendForm;
  std::vector<AttendCase> cases;
  const auto add = [&](AttendCase c, int group, std::vector<int> query_lens) {
    c.name += " of " + std::to_string(group) + " heads";
    c.group = group;
    c.context_lens = {200, 0, 0, 77};
    c.query_lens = std::move(query_lens);
    cases.push_back(std::move(c));
  };
  for (const int group : {4, 8, 16, 64}) {
    add({.name = "tokens bf16", .form = kSplits}, group, {4, 8, 0, 3});
    add({.name = "tokens i8 per token and head",
         .cache = kI8,
         .form = kJoined,
         .has_token_head_scales = true},
        group, {2, 1, 0, 2});
  }
  add({.name = "tokens e4m3 d256 soft cap",
       .cache = kE4M3,
       .head_size = 256,
       .v_head_size = 256,
       .soft_cap = 5.0f},
      8, {8, 1, 0, 3});
  add({.name = "tokens f16 d64 key alibi and sinks",
       .query = kF16,
       .cache = kF16,
       .output = kF16,
       .head_size = 64,
       .v_head_size = 64,
       .form = kPlanned,
       .parts = 6,
       .alibi = attn::Alibi::kKeyIndex,
       .has_sinks = true},
      16, {2, 4, 0, 1});
  add({.name = "tokens e4m3 queries window", .query = kE4M3, .cache = kE4M3, .window_left = 40}, 4,
      {8, 8, 0, 8});
  return cases;
}

/// f32 queries: every feature, head sizes and blocks of any size.
inline std::vector<AttendCase> f32_attend_cases() {
  using enum Dtype;
  AttendCase f32{.name = "", .query = kF32, .cache = kF32, .output = kF32};
  f32.has_large_queries = false;
  std::vector<AttendCase> cases;
  const auto add = [&](AttendCase c, const char* name) {
    c.name = std::string("f32 attention, ") + name;
    cases.push_back(c);
  };
  const auto sized = [](AttendCase c, int head_size, int v_head_size) {
    c.head_size = head_size;
    c.v_head_size = v_head_size;
    return c;
  };
  const auto few_rows = [](AttendCase c) {
    c.query_lens = {1, 1, 0, 3};
    c.context_lens = {0, 300, 0, 77};
    c.group = 5;
    return c;
  };
  const auto single = [](AttendCase c) {
    c.form = AttendForm::kSegments;
    // The last request has a row and no key.
    c.query_lens = {1, 1, 0, 1};
    c.context_lens = {0, 300, 0, -1};
    c.group = 7;
    return c;
  };
  add(f32, "d128 causal");
  AttendCase c = sized(f32, 80, 80);
  c.block_size = 0;
  c.window_left = 20;
  c.has_sinks = true;
  add(c, "d80 ragged window and sinks");
  c = sized(f32, 64, 64);
  c.soft_cap = 3.0f;
  c.alibi = attn::Alibi::kContextRelative;
  add(c, "d64 soft cap and alibi");
  c = sized(f32, 96, 40);
  c.window_right = -1;
  c.alibi = attn::Alibi::kDistance;
  add(c, "d96/40 distance alibi both ways");
  c = sized(f32, 256, 256);
  c.has_ranges = true;
  c.alibi = attn::Alibi::kSqrt;
  add(c, "d256 ranges and sqrt alibi");
  c = sized(f32, 64, 64);
  c.alibi = attn::Alibi::kGlobalDistance;
  add(c, "d64 global distance alibi");
  c = f32;
  c.cache = kE4M3;
  add(c, "with e4m3 keys");
  c.cache = kE5M2;
  add(few_rows(c), "with e5m2 keys, few rows");
  c.cache = kI8;
  c.has_token_head_scales = true;
  add(few_rows(c), "with i8 keys per token and head, few rows");
  c = f32;
  c.output = kE4M3;
  c.output_scale = 0.25f;
  add(c, "to e4m3");
  c = few_rows(f32);
  c.form = AttendForm::kSplits;
  add(c, "splits");
  c.alibi = attn::Alibi::kKeyIndex;
  add(sized(c, 33, 35), "splits d33/35 key alibi");
  c = single(f32);
  c.has_sinks = true;
  add(c, "segments");
  c = f32;
  c.block_size = 5;
  add(sized(c, 17, 19), "d17/19 block 5");
  add(sized(f32, 320, 512), "d320/512");
  return cases;
}

inline void add_attend_cases(std::vector<OperationCase>& cases,
                             const std::vector<AttendCase>& attend) {
  for (const AttendCase& c : attend) {
    double tolerance = c.query == Dtype::kBF16 || c.output == Dtype::kBF16 ? 4e-2 : 1e-2;
    if (c.output == Dtype::kE4M3) tolerance = 0.2;
    cases.push_back({c.name, tolerance, [c](Ops& ops) { return run_held(ops, c); }, tolerance / 2});
  }
}

inline void add_attend_cases(std::vector<OperationCase>& cases) {
  add_attend_cases(cases, attend_cases());
  add_attend_cases(cases, decode_form_cases());
}

inline void add_f32_attend_cases(std::vector<OperationCase>& cases) {
  for (const AttendCase& c : f32_attend_cases()) {
    // Two realisations, each within 2e-5 of the exact result (semantics §14.2).
    double tolerance = 4e-5;
    if (c.output == Dtype::kE4M3) tolerance = 0.2;
    cases.push_back({c.name, tolerance, [c](Ops& ops) { return run_attend(ops, c); }, tolerance});
  }
}

}  // namespace attnbench::cuda
