// Small cases for the Hopper prefill kernel alone: what it can do, each at least once, and the ways
// in which it can be told to do it.
#pragma once

#include "ops/cuda/attention/attend_general_cases_testing.h"

namespace attnbench::cuda {

/// A case and the kernel that it is forced to.
struct HopperCase {
  AttendCase attend;
  std::string kernel;
};

/// Several tiles of keys and rows; a request without rows, one with a few, one whose first rows
/// come before its first key.
inline AttendCase hopper_batch(std::string name, int head_size = 128, int v_head_size = 128,
                               int block_size = 0) {
  AttendCase c{.name = std::move(name),
               .head_size = head_size,
               .v_head_size = v_head_size,
               .block_size = block_size};
  c.query_lens = {130, 0, 5, 40};
  c.context_lens = {173, 0, 100, -9};
  return c;
}

/// Queries, keys, values and probabilities in e4m3.
inline AttendCase hopper_codes(std::string name, int head_size = 128, int v_head_size = 128,
                               int block_size = 0) {
  AttendCase c = hopper_batch(std::move(name), head_size, v_head_size, block_size);
  c.query = c.cache = Dtype::kE4M3;
  c.e4m3_probability = 1;
  c.has_large_queries = false;
  return c;
}

/// The same with probabilities of 16 bits.
inline AttendCase hopper_wide_codes(std::string name, int head_size = 128, int v_head_size = 128,
                                    int block_size = 0) {
  AttendCase c = hopper_codes(std::move(name), head_size, v_head_size, block_size);
  c.e4m3_probability = 0;
  return c;
}

inline std::vector<HopperCase> hopper_code_cases() {
  const std::string plain = "hopper_prefill";
  std::vector<HopperCase> cases;
  const auto add = [&](const AttendCase& c, const std::string& kernel) {
    cases.push_back({c, kernel});
    cases.back().attend.name += " by " + kernel;
  };
  AttendCase c = hopper_codes("hopper e4m3 d128 ragged causal");
  for (const char* options :
       {"", ":ping_pong=0", ":tile_n=64:promote=1", ":persistent=1:group=3"}) {
    add(c, plain + options);
  }
  c.window_right = -1;
  add(c, plain);
  c.window_left = 50;
  add(c, plain);
  for (const int size : {64, 128, 256}) {
    for (const int block : {0, 16}) {
      for (const int fast : {0, 1}) {
        c = hopper_codes("hopper e4m3 d" + std::to_string(size), size, size, block);
        c.name += block == 0 ? " ragged" : " pages of 16";
        if (fast != 0) c.name += " fast";
        c.fast_fp8_sums = fast;
        add(c, plain);
      }
    }
  }
  add(hopper_codes("hopper e4m3 d96 pages of 16", 96, 96, 16), plain);
  add(hopper_codes("hopper e4m3 d192/128", 192, 128), plain);
  add(hopper_codes("hopper e4m3 d128 pages of 64", 128, 128, 64), plain);
  add(hopper_codes("hopper e4m3 d80", 80, 80), plain);
  add(hopper_codes("hopper e4m3 d80/72", 80, 72), plain);
  c = hopper_codes("hopper e4m3 d80/72 full", 80, 72);
  c.window_right = -1;
  add(c, plain);
  c = hopper_codes("hopper e4m3 d160 to f32", 160, 160, 32);
  c.output = Dtype::kF32;
  add(c, plain);
  c = hopper_codes("hopper e4m3 d64 soft cap", 64, 64, 16);
  c.soft_cap = 3.0f;
  add(c, plain);
  c = hopper_codes("hopper e4m3 d128 alibi and sinks");
  c.alibi = attn::Alibi::kContextRelative;
  c.has_sinks = true;
  add(c, plain);
  c = hopper_codes("hopper e4m3 d128 longer, groups of seven", 128, 128, 16);
  c.query_lens = {700, 300};
  c.context_lens = {900, 0};
  c.group = 7;
  add(c, plain);
  for (const int size : {64, 96, 128, 256}) {
    for (const int block : {0, 16}) {
      c = hopper_wide_codes("hopper e4m3, P of 16 bits, d" + std::to_string(size), size, size,
                            block);
      c.name += block == 0 ? " ragged" : " pages of 16";
      add(c, plain);
      c.window_right = -1;
      c.name += " full";
      add(c, plain + ":unroll=1:bounds=1");
    }
  }
  for (const int size : {64, 96, 128, 256}) {
    c = hopper_wide_codes("hopper e4m3, values apart, d" + std::to_string(size), size, size, 16);
    c.values_apart = true;
    add(c, plain);
    c.block_size = 64;
    c.query_lens = {700, 300, 1, 900};
    c.context_lens = {500, 0, 90, 10};
    c.name += " longer";
    add(c, plain + ":ahead=0:tile_n=64");
  }
  c = hopper_wide_codes("hopper e4m3, values apart, d128 window and sinks", 128, 128, 32);
  c.values_apart = true;
  c.window_left = 50;
  c.has_sinks = true;
  add(c, plain);
  c = hopper_wide_codes("hopper e4m3, P of 16 bits, d80 windows", 80, 80);
  c.window_right = -1;
  c.query_lens = {64, 64, 20, 0, 64};
  c.context_lens = {0, 0, 0, 0, 0};
  add(c, plain);
  c = hopper_wide_codes("hopper e4m3, P of 16 bits, d80/72", 80, 72);
  c.has_sinks = true;
  c.window_right = -1;
  add(c, plain);
  add(hopper_wide_codes("hopper e4m3, P of 16 bits, d192/128", 192, 128), plain);
  c = hopper_wide_codes("hopper e4m3, P of 16 bits, d128 soft cap", 128, 128, 64);
  c.soft_cap = 3.0f;
  add(c, plain);
  for (const int size : {64, 128, 256}) {
    for (const int block : {0, 16}) {
      c = hopper_batch("hopper bf16 over e4m3 d" + std::to_string(size), size, size, block);
      c.cache = Dtype::kE4M3;
      if (block == 0) c.query = c.output = Dtype::kF16;
      if (block != 0) c.round_dequantized = 1;
      add(c, plain);
    }
  }
  return cases;
}

inline std::vector<HopperCase> hopper_cases() {
  const std::string plain = "hopper_prefill";
  const std::string wide = "hopper_prefill:consumers=3:tile_n=80";
  std::vector<HopperCase> cases;
  const auto add = [&](const AttendCase& c, const std::string& kernel) {
    cases.push_back({c, kernel});
    cases.back().attend.name += " by " + kernel;
  };
  AttendCase c = hopper_batch("hopper d128 ragged causal");
  for (const char* options :
       {"", ":consumers=3:tile_n=80", ":consumers=3:tile_n=80:fixed_base=1",
        ":consumers=3:tile_n=64:stages=3", ":persistent=1:ping_pong=1:reverse=1:group=3",
        ":consumers=3:tile_n=80:ahead=1", ":consumers=3:tile_n=80:ahead=0", ":ahead=0"}) {
    add(c, plain + options);
  }
  c.window_right = -1;
  add(c, wide);
  c.window_left = 50;
  add(c, wide);
  for (const int size : {64, 80, 96, 128, 192, 256}) {
    for (const int block : {0, 16, 64}) {
      // The tile of long requests, whatever the length is.
      AttendCase sized =
          hopper_batch("hopper d" + std::to_string(size), size, size == 192 ? 128 : size, block);
      sized.name += block == 0 ? " ragged" : " pages of " + std::to_string(block);
      if (size == 80 && block == 16) sized.query = sized.cache = sized.output = Dtype::kF16;
      add(sized, size == 64 ? "hopper_prefill:consumers=3:tile_n=128:ping_pong=1"
                 : size == 80 && block == 0
                     ? "hopper_prefill:consumers=3:tile_n=112:line=128:ping_pong=1"
                 : size <= 96  ? "hopper_prefill:consumers=3:tile_n=96"
                 : size <= 192 ? wide
                               : plain);
    }
  }
  // Rows that products take more columns of than there are.
  for (const int size : {40, 72, 88, 120}) {
    AttendCase sized = hopper_batch("hopper d" + std::to_string(size), size, size);
    if (size == 88) sized.output = Dtype::kF32;
    add(sized, size == 120 ? wide : "hopper_prefill:consumers=3:tile_n=96");
  }
  // Encoders: rows of 72 and 80 columns in lines of each length, windows, images.
  for (const int size : {72, 80}) {
    AttendCase sized = hopper_batch("hopper encoder d" + std::to_string(size), size, size);
    sized.query_lens = {64, 64, 16, 0, 64, 700, 130};
    sized.context_lens = {0, 0, 0, 0, 0, 0, 0};
    sized.window_right = -1;
    sized.group = 1;
    for (const char* options :
         {"", ":ahead=0:line=0", ":consumers=3:tile_n=112:line=128:ping_pong=1:persistent=0"}) {
      if (size == 72 && options[0] == ':' && options[1] == 'a') continue;
      add(sized, plain + options);
    }
  }
  add(hopper_batch("hopper d32 pages of 16", 32, 32, 16), "hopper_prefill:consumers=3:tile_n=128");
  add(hopper_batch("hopper d128 pages of 64 in a box", 128, 128, 64),
      "hopper_prefill:consumers=3:tile_n=64");
  for (const int block : {0, 16}) {
    c = hopper_batch("hopper d128 rows without keys", 128, 128, block);
    c.query_lens = {5, 70, 3};
    c.context_lens = {-5, -70, 20};
    add(c, wide);
  }
  c = hopper_batch("hopper d128 soft cap", 128, 128, 16);
  c.soft_cap = 3.0f;
  add(c, wide);
  c = hopper_batch("hopper d64 soft cap, window", 64, 64, 16);
  c.soft_cap = 3.0f;
  c.window_left = 40;
  add(c, "hopper_prefill:consumers=3:tile_n=96");
  c = hopper_batch("hopper d128 alibi and sinks");
  c.alibi = attn::Alibi::kContextRelative;
  c.has_sinks = true;
  add(c, wide);
  c = hopper_batch("hopper d128 ranges in a window to f32", 128, 128, 16);
  c.has_ranges = true;
  c.window_left = 25;
  c.output = Dtype::kF32;
  add(c, wide);
  c = hopper_batch("hopper d256 sqrt alibi, groups of four", 256, 256, 16);
  c.alibi = attn::Alibi::kSqrt;
  c.group = 4;
  add(c, plain);
  c = hopper_batch("hopper d128 longer, groups of four", 128, 128, 16);
  c.query_lens = {700, 300, 1, 900};
  c.context_lens = {500, 0, 90, 10};
  c.group = 4;
  add(c, wide + ":ahead=1");
  // What prompts take by their length: attention/hopper_plan.cpp.
  for (const char* options : {":stages=3:ahead=1:late_output=1", ":ahead=0:tail=1"}) {
    add(c, wide + options);
  }
  AttendCase narrow = hopper_batch("hopper d64 longer, groups of four", 64, 64, 16);
  narrow.query_lens = c.query_lens;
  narrow.context_lens = c.context_lens;
  narrow.group = 4;
  for (const char* options : {":tile_n=64:ahead=1", ":tile_n=128:ahead=0:tail=1:unroll=1"}) {
    add(narrow, plain + ":consumers=3:stages=3:ping_pong=0" + options);
  }
  AttendCase full = hopper_batch("hopper d192 full", 192, 128);
  full.window_right = -1;
  add(full, plain + ":consumers=2:tile_n=64:stages=3:ping_pong=0:ahead=1:late_output=1");
  add(full, wide + ":ahead=0:tail=1");
  c = hopper_batch("hopper d128 longer, groups of seven", 128, 128, 16);
  c.query_lens = {700, 300};
  c.context_lens = {500, 0};
  c.group = 7;
  add(c, plain);
  // Prompts of MLA, whose heads share the last 64 columns of their keys.
  full.name = "hopper d192 full, rope apart";
  full.rope = 64;
  add(full, wide + ":ahead=0:tail=1");
  add(full, wide + ":ahead=1");
  AttendCase latent = hopper_batch("hopper d192 causal, rope apart", 192, 128);
  latent.rope = 64;
  latent.output = Dtype::kF32;
  add(latent, plain + ":consumers=2:tile_n=64:stages=3:ping_pong=0:ahead=1");
  latent.query = latent.cache = latent.output = Dtype::kF16;
  add(latent, plain);
  return cases;
}

/// Forms of soft caps, slopes and windows that options choose.
inline std::vector<HopperCase> hopper_feature_cases() {
  std::vector<HopperCase> cases;
  const auto add = [&](const AttendCase& c, const std::string& options) {
    cases.push_back({c, "hopper_prefill:consumers=3" + options});
    cases.back().attend.name += " by " + options;
  };
  for (const bool has_large_queries : {false, true}) {
    AttendCase c = hopper_batch("hopper d128 soft cap", 128, 128, 16);
    c.soft_cap = 3.0f;
    c.has_large_queries = has_large_queries;
    for (const int form : {1, 2, 3, 4}) add(c, fmt::format(":tile_n=80:cap={}", form));
    c.has_sinks = true;
    c.window_left = 50;
    add(c, ":tile_n=80:cap=2:fit=1");
    c.query = c.cache = c.output = Dtype::kF16;
    add(c, ":tile_n=80:cap=3:fit=1:ahead=1");
  }
  AttendCase c = hopper_batch("hopper d64 soft cap", 64, 64, 16);
  c.soft_cap = 20.0f;
  add(c, ":tile_n=128:ping_pong=1:cap=2:ahead=0");
  add(c, ":tile_n=128:ping_pong=1:cap=3:ahead=0");
  c = hopper_batch("hopper d128 alibi and sinks");
  c.alibi = attn::Alibi::kContextRelative;
  c.has_sinks = true;
  add(c, ":tile_n=80:slopes=1");
  c.group = 7;
  add(c, ":tile_n=80:slopes=1");
  c = hopper_batch("hopper d128 window", 128, 128, 64);
  c.query_lens = {700, 300, 1, 900};
  c.context_lens = {500, 0, 90, 10};
  c.window_left = 200;
  c.group = 4;
  add(c, ":tile_n=80:bounds=1");
  add(c, ":tile_n=80:fit=1");
  add(c, ":tile_n=80:fit=1:ahead=1");
  return cases;
}

/// Forms of e4m3 products that options choose.
inline std::vector<HopperCase> hopper_code_form_cases() {
  std::vector<HopperCase> cases;
  const auto add = [&](AttendCase c, const std::string& options) {
    c.name += " by " + options;
    cases.push_back({c, "hopper_prefill" + options});
  };
  AttendCase c = hopper_codes("hopper e4m3 d128 longer", 128, 128, 16);
  c.query_lens = {700, 300, 1, 900};
  c.context_lens = {500, 0, 90, 10};
  for (const char* options :
       {"", ":unroll=0:ping_pong=0", ":tile_n=96:stages=3", ":sums=32", ":sums=32:ordered=1",
        ":sums=32:ping_pong=1:unroll=0", ":apart=0:consumers=2:sums=0:ping_pong=1",
        ":apart=0:consumers=2:sums=0:promote=4", ":consumers=2:tile_n=160:sums=64",
        ":consumers=2:tile_n=192:sums=32"}) {
    add(c, options);
  }
  c.window_right = -1;
  add(c, "");
  add(hopper_codes("hopper e4m3 d128 ragged"), ":ping_pong=0:tile_n=160:sums=64");
  add(hopper_codes("hopper e4m3 d96", 96, 96, 16), "");
  add(hopper_codes("hopper e4m3 d32", 32, 32, 16), "");
  c = hopper_codes("hopper e4m3 d64", 64, 64, 64);
  add(c, "");
  add(c, ":sums=32");
  add(c, ":apart=0:tile_n=96:sums=0:ping_pong=1");
  add(c, ":consumers=2:tile_n=224:sums=32");
  c = hopper_codes("hopper e4m3 d256", 256, 256, 16);
  add(c, "");
  add(c, ":tile_n=64:sums=0");
  add(c, ":tile_n=64:sums=64");
  return cases;
}

/// Scores of int8 codes (semantics §11.4): levels, head sizes, pages, masks.
inline std::vector<Int8AttendCase> hopper_int8_cases() {
  std::vector<Int8AttendCase> cases;
  // Levels take turns, and so do the types of 16 bits: every kernel is one to compile.
  for (const auto& [size, values] : std::vector<std::pair<int, Dtype>>{{64, Dtype::kI8},
                                                                       {96, Dtype::kBF16},
                                                                       {128, Dtype::kI8},
                                                                       {128, Dtype::kBF16},
                                                                       {192, Dtype::kF16},
                                                                       {256, Dtype::kI8}}) {
    Int8AttendCase c{values, size};
    c.query_lens = {130, 0, 5, 40, 300};
    c.seq_lens = {303, 0, 105, 31, 300};
    c.block_size = size == 128 ? 64 : (size == 96 ? 32 : 16);
    c.heads = size == 128 ? 8 : 4;
    cases.push_back(c);
    if (size != 128) continue;
    c.window_right = -1;
    cases.push_back(c);
    if (values != Dtype::kI8) continue;
    c.window_left = 50;
    cases.push_back(c);
    c.soft_cap = 2.0f;
    cases.push_back(c);
  }
  for (const int size : {64, 96, 128, 256}) {
    Int8AttendCase c{Dtype::kI8, size};
    c.values_apart = true;
    c.query_lens = {130, 0, 5, 40, 300};
    c.seq_lens = {303, 0, 105, 31, 300};
    cases.push_back(c);
    if (size != 128) continue;
    c.query_lens = {1300, 300};
    c.seq_lens = {1303, 5000};
    cases.push_back(c);
    c.window_left = 50;
    cases.push_back(c);
  }
  for (const Dtype values : {Dtype::kI8, Dtype::kBF16}) {
    Int8AttendCase c{values, 128};
    c.query_lens = {1, 1, 0, 3, 2};
    c.seq_lens = {1900, 1, 0, 3, 66};
    c.heads = 8;
    cases.push_back(c);
    c.saves = true;
    cases.push_back(c);
  }
  return cases;
}

/// Each held to its kernel on a device; the CPU has none to be held to.
inline std::vector<OperationCase> forced_operations(const std::vector<HopperCase>& forced) {
  std::vector<OperationCase> cases;
  for (const HopperCase& c : forced) {
    // e4m3 weights are relative to other bases here and there.
    const double tolerance = c.attend.e4m3_probability != 0 ? 0.1 : 4e-2;
    cases.push_back({c.attend.name, tolerance,
                     [c](Ops& ops) { return by_kernel(ops, c.kernel, run_attend, c.attend); },
                     tolerance / 2});
  }
  return cases;
}
inline OperationCase int8_operation(const std::string& kernel, const Int8AttendCase& c) {
  const std::string name = kernel + " int8 d" + std::to_string(c.head_size) + " values " +
                           std::string(dtype_name(c.values)) + " pages of " +
                           std::to_string(c.block_size) + " windows " +
                           std::to_string(c.window_left) + "/" + std::to_string(c.window_right) +
                           (c.soft_cap > 0.0f ? " soft cap" : "") + (c.saves ? " saving" : "") +
                           (c.values_apart ? " apart" : "");
  return {name, 4e-2, [=](Ops& ops) { return by_kernel(ops, kernel, run_int8_attend, c); }, 2e-2};
}
/// With those of int8 scores.
inline std::vector<OperationCase> operations_of(const std::vector<HopperCase>& forced) {
  std::vector<OperationCase> cases = forced_operations(forced);
  for (const Int8AttendCase& c : hopper_int8_cases()) {
    cases.push_back(int8_operation("hopper_prefill", c));
  }
  return cases;
}
inline std::vector<OperationCase> hopper_operation_cases() { return operations_of(hopper_cases()); }
inline std::vector<OperationCase> hopper_feature_operation_cases() {
  return forced_operations(hopper_feature_cases());
}
/// Scores of int8 codes by additions, and codes by lanes that keep their columns.
inline std::vector<OperationCase> hopper_int8_form_cases() {
  std::vector<OperationCase> cases;
  for (const Int8AttendCase& c : hopper_int8_cases()) {
    if (c.window_left >= 0 || c.window_right < 0 || c.saves) continue;
    cases.push_back(int8_operation("hopper_prefill:add_floats=1:keep_columns=1", c));
  }
  return cases;
}
inline std::vector<OperationCase> hopper_code_form_operation_cases() {
  return forced_operations(hopper_code_form_cases());
}
/// Of one-byte keys and values.
inline std::vector<OperationCase> hopper_code_operation_cases() {
  return operations_of(hopper_code_cases());
}

}  // namespace attnbench::cuda
