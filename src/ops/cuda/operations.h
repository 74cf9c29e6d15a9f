// The operations of ops.h as kernel launches, one function each; KernelOps wraps them.
#pragma once

#include "kernels/params.h"
#include "kernels/params_mla.h"
#include "kernels/params_rope.h"
#include "ops/cuda/launcher.h"

namespace attnbench::cuda {

/// attend* and combine*: E-UNSUPPORTED for value head sizes above 576.
void attend(Launcher& launcher, const attn::AttendParams& params);
void attend_splits(Launcher& launcher, const attn::AttendParams& params,
                   const attn::SplitParams& split);
void combine_splits(Launcher& launcher, const attn::AttendParams& params,
                    const attn::SplitParams& split);
void attend_segments(Launcher& launcher, const attn::AttendParams& params,
                     const attn::SegmentParams& segments);
void reduce_segments(Launcher& launcher, const attn::AttendParams& params,
                     const attn::SegmentParams& segments);
void merge(Launcher& launcher, const attn::MergeParams& params);
void write_cache(Launcher& launcher, const attn::CacheWriteParams& params);
void rope(Launcher& launcher, const attn::RopeParams& params);
void rope_and_write_cache(Launcher& launcher, const attn::RopeParams& rope,
                          const attn::CacheWriteParams& write);
void gather_mla(Launcher& launcher, const attn::MlaGatherParams& params);
void cp_gather(Launcher& launcher, const attn::CpGatherParams& params);

}  // namespace attnbench::cuda
