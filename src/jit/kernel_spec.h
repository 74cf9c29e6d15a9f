// What a kernel is compiled from: its device file, its entry and the compile-time choices.
//
// Kernels are templates over one class, Config, whose members are all that they know at compile
// time (head size, types, features). A launcher fills in a spec, the kernel store compiles it once
// and keeps it. So a choice is named at its only place, and the text that NVRTC gets can be read:
//
//   #include "kernels/attention/prefill.cuh"
//   struct Config {
//     static constexpr int kHeadSize = 128;
//     using Query = __nv_bfloat16;
//   };
#pragma once

#include <string>
#include <utility>
#include <vector>

namespace attnbench {

/// Compile-time choices of one kernel. Two equal specs are the same machine code.
struct KernelSpec {
  std::string source;    // "attention/prefill.cuh", under kernels/
  std::string function;  // "attn::prefill": a __global__ template over one class, Config
  /// Members of Config, in order: {"int kHeadSize", "128"} becomes
  /// `static constexpr int kHeadSize = 128;`, {"using Query", "__nv_bfloat16"} becomes
  /// `using Query = __nv_bfloat16;`.
  std::vector<std::pair<std::string, std::string>> constants;
  int allowed_spill_bytes = 0;  // of registers in local memory; tests fail on more
  std::string name;             // for people: "prefill d128 bf16 causal paged"

  bool operator==(const KernelSpec&) const = default;
};

// The text that NVRTC compiles for a spec: a named Config and an include of the device file.

/// Throws kConfig when the spec has no source or function, or a constant without name or value.
std::string program_text(const KernelSpec& spec);

/// What is compiled out of it: "attn::prefill<Config>".
std::string entry_expression(const KernelSpec& spec);

}  // namespace attnbench
