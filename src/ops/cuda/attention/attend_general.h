// The attention kernel for what fits_tiled_kernels() denies: wide heads, f32, e4m3 and int8
// queries, sizes and alignments of any kind.
#pragma once

#include "kernels/params.h"
#include "ops/cuda/launcher.h"

namespace attnbench::cuda {

/// What the kernels of general.cuh declare of shared memory beside what a launch asks for, at most.
constexpr int kGeneralStaticSharedBytes = 4096;

/// E-UNSUPPORTED for combinations of elements that have no kernel, and for heads whose tiles do
/// not fit into shared memory.
void attend_general(Launcher& launcher, const attn::AttendParams& params);
void attend_general_splits(Launcher& launcher, const attn::AttendParams& params,
                           const attn::SplitParams& split);
void attend_general_segments(Launcher& launcher, const attn::AttendParams& params,
                             const attn::SegmentParams& segments);

/// Whether some attention kernel does it, as the operations above and attend() choose one: the same
/// errors, and nothing is launched.
void check_attend(const Target& target, const attn::AttendParams& params);

}  // namespace attnbench::cuda
