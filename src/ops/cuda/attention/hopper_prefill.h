// The candidate of kernels/attention/hopper: what it takes, which tile a problem gets and why, and
// the boxes by which the copy engine brings its keys. Pure functions of the parameters and of what
// was asked for by name, so that choices are tested, and printed by `explain`, without a GPU.
#pragma once

#include <string>
#include <string_view>

#include "gpu/tensor_map.h"
#include "ops/cuda/attention/spec.h"

#include "kernels/attention/hopper/layout.cuh"
#include "kernels/attention/hopper/schedule.cuh"

namespace attnbench::cuda {

/// How the kernel goes about a problem.
struct HopperPlan {
  attn::HopperTile tile{};
  bool ping_pong = false;   // warpgroups take turns at the tensor cores
  bool persistent = false;  // attn::hopper_ctas() a multiprocessor, each with a row tile a round;
                            // else one CTA each
  bool fixed_base = false;  // shared memory is taken to start at attn::kFirstSharedAddress
  int promote = 0;          // e4m3: tiles whose sums may stay in the tensor cores; 0 = all
  int group = 1;            // attn::HopperGrid
  bool reverse = false;
  std::string reason;  // why this tile: "192 rows by 80 keys, 2 stages: ..."

  /// Whether a CTA goes through several row tiles.
  bool stays() const { return persistent || tile.ahead; }
  int tile_rows() const { return tile.consumers * attn::kConsumerRows; }
};

/// Whether a forced kernel's name asks for a tuning of this one,
/// "hopper_prefill:tile_n=64:stages=3", and if so why it cannot be ("tile_n=70 is not a multiple of
/// 16"). Options: consumers (1 to 3), tile_n (a multiple of 16, of e4m3 products 32, 64 to 256),
/// stages (2 to 4), line (0, 64, 128; of 16 bits), ping_pong, persistent, ahead (which is
/// persistent), fixed_base, reverse (0, 1), group (from 1) and, of e4m3 products with values of up
/// to 128 columns, promote (1 to 16 tiles).
std::string hopper_options_misfit(std::string_view options);

/// The plan of a problem that fits; `options` as above, without the name, override it.
HopperPlan hopper_plan(const attn::AttendParams& params, std::string_view options = {});

/// Why the kernel cannot do it; empty where it can.
std::string hopper_prefill_misfit(const Target& target, const attn::AttendParams& params);

AttendKernel hopper_prefill_kernel(const attn::AttendParams& params, const HopperPlan& plan);
attn::HopperGrid hopper_grid(const attn::AttendParams& params, const HopperPlan& plan);
LaunchShape hopper_shape(const Target& target, const attn::AttendParams& params,
                         const HopperPlan& plan);

/// Boxes of attn::box_rows() keys or values; dimensions as of attn::hopper_prefill.
TensorMap hopper_key_map(const attn::AttendParams& params, const HopperPlan& plan);
TensorMap hopper_value_map(const attn::AttendParams& params, const HopperPlan& plan);
/// Boxes of 64 packed rows, where the plan works ahead.
TensorMap hopper_query_map(const attn::AttendParams& params);

}  // namespace attnbench::cuda
