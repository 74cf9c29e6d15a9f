// Launches of kernels with one thread, or a few, for each piece of the work.
#pragma once

#include <string>
#include <utility>

#include "ops/cuda/launcher.h"
#include "ops/cuda/vector_choice.h"

namespace attnbench::cuda {

constexpr int kSimpleThreads = 256;

/// `source` under kernels/ and a function of it ("attn::" is added), with kThreads and `constants`.
inline KernelSpec simple_spec(const std::string& source, const std::string& function,
                              std::vector<std::pair<std::string, std::string>> constants,
                              std::string name) {
  KernelSpec spec;
  spec.source = source;
  spec.function = "attn::" + function;
  spec.constants = std::move(constants);
  spec.constants.emplace_back("int kThreads", std::to_string(kSimpleThreads));
  spec.name = std::move(name);
  return spec;
}

/// CTAs for `threads` threads in all.
inline LaunchShape simple_shape(std::int64_t threads) {
  LaunchShape shape;
  shape.grid_x = ceil_quotient(threads, kSimpleThreads);
  shape.threads = kSimpleThreads;
  return shape;
}

}  // namespace attnbench::cuda
