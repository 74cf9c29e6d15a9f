// The launcher of kernels/matmul/warpgroup_probe.cuh, which no operation uses: products of every
// width, element and source for tests.
#pragma once

#include <fmt/format.h>

#include <vector>

#include "ops/cuda/launcher.h"
#include "ops/cuda/vector_choice.h"

namespace attnbench::cuda {

struct WarpgroupProbe {
  attn::Element element = attn::Element::kBF16;
  int columns = 64;  // N
  int depth = 64;    // K
  bool from_registers = false;

  int element_bytes() const { return size_of_element(element); }
  /// B is [K, N] instead of [N, K].
  bool is_across() const { return from_registers && element_bytes() == 2; }
};

inline KernelSpec warpgroup_probe_spec(const WarpgroupProbe& probe) {
  KernelSpec spec;
  spec.source = "matmul/warpgroup_probe.cuh";
  spec.function = "attn::warpgroup_probe";
  spec.constants = {{"attn::Element kElement", spec_name(probe.element)},
                    {"int kColumns", std::to_string(probe.columns)},
                    {"int kDepth", std::to_string(probe.depth)},
                    {"bool kFromRegisters", spec_flag(probe.from_registers)}};
  spec.name =
      fmt::format("warpgroup_probe {} 64 x {} x {} from {}", short_name(probe.element),
                  probe.columns, probe.depth, probe.from_registers ? "registers" : "shared memory");
  return spec;
}

inline LaunchShape warpgroup_probe_shape(const WarpgroupProbe& probe) {
  const auto aligned = [](int bytes) { return (bytes + 1023) / 1024 * 1024; };
  LaunchShape shape;
  shape.threads = 384;
  shape.shared_bytes = aligned(64 * probe.depth * probe.element_bytes()) +
                       aligned(probe.depth * probe.columns * probe.element_bytes()) +
                       64 * probe.columns * 2;
  return shape;
}

/// Every width, and lines of 128, 64 and 32 bytes, of every element from either source.
inline std::vector<WarpgroupProbe> warpgroup_probes() {
  std::vector<WarpgroupProbe> probes;
  using enum attn::Element;
  for (const bool from_registers : {false, true}) {
    for (int columns = 32; columns <= 256; columns += 16) {
      probes.push_back({kBF16, columns, 64, from_registers});
    }
    for (const int depth : {16, 32, 48, 96, 128}) {
      probes.push_back({kF16, 80, depth, from_registers});
      probes.push_back({kE4M3, 128, 2 * depth, from_registers});
    }
  }
  return probes;
}

}  // namespace attnbench::cuda
