// Small cases for the Hopper prefill kernel alone: what it can do, each at least once, and the ways
// in which it can be told to do it.
#pragma once

#include "ops/cuda/attention/attend_cases_testing.h"

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
        ":consumers=3:tile_n=64:stages=3", ":persistent=1:ping_pong=1:reverse=1:group=3"}) {
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
      add(sized, size == 64    ? "hopper_prefill:consumers=3:tile_n=128:ping_pong=1"
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
  c = hopper_batch("hopper d128 longer, groups of seven", 128, 128, 16);
  c.query_lens = {700, 300};
  c.context_lens = {500, 0};
  c.group = 7;
  add(c, plain);
  return cases;
}

/// Each held to its kernel on a device; the CPU has none to be held to.
inline std::vector<OperationCase> hopper_operation_cases() {
  std::vector<OperationCase> cases;
  for (const HopperCase& c : hopper_cases()) {
    cases.push_back({c.attend.name, 4e-2,
                     [c](Ops& ops) {
                       const bool is_cpu = ops.device_name() == "cpu";
                       if (!is_cpu) ops.force_kernel(c.kernel);
                       std::vector<Tensor> results = run_attend(ops, c.attend);
                       if (!is_cpu) ops.force_kernel("");
                       return results;
                     },
                     2e-2});
  }
  return cases;
}

}  // namespace attnbench::cuda
