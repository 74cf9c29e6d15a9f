// The candidate of kernels/attention/hopper/tiles.cuh: attention by a list of tiles. What it takes
// is what hopper_prefill takes over pages; how its tiles of keys are is chosen here, how its rows
// are cut is given by the list. Pure functions, as those of hopper_prefill.h.
//
// A pipeline makes a list, and calls attend_tiles(), where a command names the kernel
// (FLASH_ATTN@hopper_tiles), or where it fits and one launch pays (Ops::tile_use).
#pragma once

#include <string>
#include <string_view>

#include "kernels/params_tiles.h"
#include "ops/cuda/attention/hopper_prefill.h"
#include "ops/ops.h"

namespace attnbench::cuda {

/// Whether a list of these parameters may have tiles beside the others, which four warps do beside
/// the consumers (kernels/attention/hopper/beside.cuh); kAlways with the option beside above 0,
/// kNever with 0, or without it where few, persistent or ahead asks for another way.
/// `options` as below.
TileUse hopper_beside_use(const attn::AttendParams& params, std::string_view options = {});

/// The plan for a list that fits. Options of a forced kernel, "hopper_tiles:tile_n=64:stages=3",
/// are those of hopper_prefill; consumers, reverse and group are the list's, ping_pong has no
/// meaning here: these change nothing. persistent and ahead are the same here; where both are
/// given, ahead counts. few, beside and shares are of lists alone. Errors: E-UNSUPPORTED for an
/// option that cannot be.
HopperPlan hopper_tiles_plan(const Target& target, const attn::AttendParams& params,
                             const attn::TileListParams& list, std::string_view options = {});

/// Why the kernel cannot do it; empty where it can: what hopper_prefill takes, over pages, in tiles
/// of 128 rows, or of 192 up to head sizes of 192 and 128.
std::string hopper_tiles_misfit(const Target& target, const attn::AttendParams& params,
                                const attn::TileListParams& list);

/// Constants, threads and shared memory (bytes) of the plan's kernel. Its spec differs from that of
/// hopper_prefill by where tiles come from, and by whether results are parts that a combination
/// joins: then `params.output` stays untouched, and parts are f32.
AttendKernel hopper_tiles_kernel(const attn::AttendParams& params, const attn::TileListParams& list,
                                 const HopperPlan& plan);

/// Boxes of its queries, where the plan works ahead.
TensorMap hopper_listed_query_map(const attn::AttendParams& params,
                                  const attn::TileListParams& list);

/// As many CTAs as there are places for, or bundles, where the plan stays and they draw these; else
/// one for every tile of the list.
LaunchShape hopper_tiles_shape(const AttendKernel& kernel, const attn::TileListParams& list,
                               const HopperPlan& plan);

}  // namespace attnbench::cuda
