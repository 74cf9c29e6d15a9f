// Calls of attention by int8 scores that the decode kernel takes where it is asked for, for its
// tests on a GPU and of what compiles: levels, head sizes, pages, groups of heads, masks, splits
// and the saving of what is new.
#pragma once

#include <string>
#include <utility>
#include <vector>

#include "ops/cuda/attention/attend_general_cases_testing.h"
#include "ops/cuda/attention/attend_runs_testing.h"

namespace attnbench::cuda {

/// Of these lengths, none of which but the second is whole pages; the third request has no keys.
inline Int8AttendCase int8_decodes(Dtype values, int head_size) {
  Int8AttendCase c{values, head_size};
  c.query_lens = {1, 1, 0, 3, 2};
  c.seq_lens = {1901, 64, 0, 3, 66};
  return c;
}

inline std::vector<std::pair<std::string, Int8AttendCase>> int8_decode_cases() {
  std::vector<std::pair<std::string, Int8AttendCase>> cases;
  const auto add = [&](const std::string& options, const Int8AttendCase& c) {
    cases.emplace_back("decode" + options, c);
  };
  // Levels take turns, and so do the types of 16 bits: every kernel is one to compile.
  for (const auto& [size, values] : std::vector<std::pair<int, Dtype>>{{64, Dtype::kI8},
                                                                       {96, Dtype::kBF16},
                                                                       {128, Dtype::kI8},
                                                                       {128, Dtype::kBF16},
                                                                       {192, Dtype::kF16},
                                                                       {256, Dtype::kI8},
                                                                       {256, Dtype::kBF16}}) {
    Int8AttendCase c = int8_decodes(values, size);
    c.block_size = size == 128 ? 16 : (size == 96 ? 32 : 64);
    add("", c);  // 6 rows of a KV head
    c.heads = 32;
    add("", c);  // 48 of them
    c.heads = 4;
    c.splits = c.saves = true;
    add("", c);
    if (size != 128) continue;
    c.saves = false;
    add("", c);
    c.splits = false;
    c.heads = 8;
    add("", c);  // 12 of them
    c.heads = 32;
    add(":rows=16", c);
    c.heads = 4;
    c.saves = true;
    add("", c);
    add(":save=0", c);
  }
  for (const Dtype values : {Dtype::kI8, Dtype::kBF16}) {
    for (const bool saves : {false, true}) {
      Int8AttendCase c = int8_decodes(values, 128);
      c.saves = saves;
      c.window_left = 50;
      add("", c);
      c.window_left = 1;  // a window of fewer keys than are new
      c.splits = true;
      add("", c);
      c.window_left = -1;
      c.soft_cap = 2.0f;
      add("", c);
      c.soft_cap = 0.0f;
      c.window_right = -1;
      add("", c);
      c.joined = true;
      add("", c);
      add(":cluster=0", c);
    }
  }
  return cases;
}

inline std::vector<OperationCase> int8_decode_operation_cases() {
  std::vector<OperationCase> operations;
  for (const auto& [kernel, c] : int8_decode_cases()) {
    const std::string name = kernel + " int8 d" + std::to_string(c.head_size) + " values " +
                             std::string(dtype_name(c.values)) + " heads " +
                             std::to_string(c.heads) + " windows " + std::to_string(c.window_left) +
                             "/" + std::to_string(c.window_right) +
                             (c.soft_cap > 0.0f ? " soft cap" : "") + (c.joined ? " joined" : "") +
                             (c.splits ? " splits" : "") + (c.saves ? " saving" : "");
    operations.push_back(
        {name, 4e-2, [kernel, c](Ops& ops) { return by_kernel(ops, kernel, run_int8_attend, c); },
         2e-2});
  }
  return operations;
}

}  // namespace attnbench::cuda
