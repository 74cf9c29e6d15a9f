// The candidate of kernels/attention/hopper: what it takes, its spec and launch, and the boxes by
// which the copy engine brings its keys, given a plan (hopper_plan.h). Pure functions of the
// parameters, as those of the plan.
#pragma once

#include <cstdint>
#include <optional>
#include <string>

#include "gpu/tensor_map.h"
#include "ops/cuda/attention/hopper_plan.h"

#include "kernels/attention/hopper/schedule.cuh"

namespace attnbench::cuda {

/// Why the kernel cannot do it, of a whole attention without options ("compute capability 8.0: its
/// instructions are those of 9.0"); empty where it can: 16 bits of one type, e4m3, int8 scores over
/// pages, or e4m3 keys beside 16-bit queries; head sizes of 32 to 256; blocks of multiples of 16
/// keys; rows on multiples of 16 bytes; a rope part of contiguous 16-bit keys apart from the others
/// in multiples of 64 columns.
std::string hopper_prefill_misfit(const Target& target, const attn::AttendParams& params);

/// Constants, threads and shared memory (bytes) of the plan's kernel.
AttendKernel hopper_prefill_kernel(const attn::AttendParams& params, const HopperPlan& plan);

/// How many row tiles there are, and in which order CTAs take them: the plan's group of units at a
/// time, so that their keys stay in the L2. Which of them are cut where the plan has a tail.
attn::HopperGrid hopper_grid(const Target& target, const attn::AttendParams& params,
                             const HopperPlan& plan);

/// A CTA for each row tile of every request and KV head, or piece of one; where the plan stays, no
/// more of them than the target has places for.
LaunchShape hopper_shape(const Target& target, const attn::AttendParams& params,
                         const HopperPlan& plan);

/// Boxes of attn::box_rows() keys or values; dimensions as of attn::hopper_prefill. Rows and pages
/// are not counted, since the host does not know how many a cache has.
/// Keys whose rope part lies apart have two maps, the second with the columns that all heads share.
TensorMap hopper_key_map(const attn::AttendParams& params, const HopperPlan& plan);
TensorMap hopper_rope_map(const attn::AttendParams& params, const HopperPlan& plan);
TensorMap hopper_value_map(const attn::AttendParams& params, const HopperPlan& plan);
/// Boxes of 64 packed rows of 16-bit queries, where the plan works ahead. `num_tokens`: of the
/// batch, where a kernel brings boxes that reach past it (HopperShape::kCountsTokens).
TensorMap hopper_query_map(const attn::AttendParams& params,
                           std::optional<std::int64_t> num_tokens = std::nullopt);
/// Whether the copy engine stores output rows that are not parts (kStoresBoxes), and a line of 16
/// packed rows of it.
bool stores_boxes(const attn::AttendParams& params, const HopperPlan& plan);
TensorMap hopper_output_map(const attn::AttendParams& params);

}  // namespace attnbench::cuda
