// The operations of ops.h as kernel launches, one function each; KernelOps wraps them.
#pragma once

#include "kernels/params.h"
#include "kernels/params_dcp.h"
#include "kernels/params_int8.h"
#include "kernels/params_mla.h"
#include "kernels/params_mm.h"
#include "kernels/params_quant.h"
#include "kernels/params_rope.h"
#include "kernels/params_scale.h"
#include "ops/cuda/launcher.h"

namespace attnbench::cuda {

/// attend* and combine*: by the tiled kernels where they fit, else by the general one.
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

void quantise_int8(Launcher& launcher, const attn::Int8QuantiseParams& params);
void write_cache_int8(Launcher& launcher, const attn::Int8CacheWriteParams& params);
void save_and_attend_int8(Launcher& launcher, const attn::Int8CacheWriteParams& save,
                          const attn::AttendParams& params);
void quantise_pad_fp8(Launcher& launcher, const attn::PadQuantiseParams& params);
void amax(Launcher& launcher, const attn::AmaxParams& params);
void update_amax_history(Launcher& launcher, const attn::AmaxHistoryParams& params);
void calc_kv_scales(Launcher& launcher, const attn::KvScaleParams& params);
void rope_and_write_mla_cache(Launcher& launcher, const attn::RopeParams& rope,
                              const attn::MlaCacheWriteParams& write);
void attend_plan(Launcher& launcher, const attn::AttendParams& params,
                 const attn::PlanParams& plan);
void combine_plan(Launcher& launcher, const attn::AttendParams& params,
                  const attn::PlanParams& plan);
void attend_sparse(Launcher& launcher, const attn::AttendParams& params,
                   const attn::SparseParams& sparse);
void attend_sparse_plan(Launcher& launcher, const attn::AttendParams& params,
                        const attn::SparseParams& sparse, const attn::PlanParams& plan);
void matmul(Launcher& launcher, const attn::MatmulParams& params);
void write_mla_cache(Launcher& launcher, const attn::MlaCacheWriteParams& params);
void upconvert_ds_mla(Launcher& launcher, const attn::DsMlaUpconvertParams& params);
void concat(Launcher& launcher, const attn::ConcatParams& params);
void gather_rows(Launcher& launcher, const attn::GatherRowsParams& params);
void copy(Launcher& launcher, const attn::CopyParams& params);
void quantise_fp8(Launcher& launcher, const attn::StaticQuantiseParams& params);
void quantise_fp8_groups(Launcher& launcher, const attn::GroupQuantiseParams& params);
void quantise_nvfp4(Launcher& launcher, const attn::Nvfp4QuantiseParams& params);
void correct_dcp(Launcher& launcher, const attn::DcpCorrectParams& params);
void combine_dcp(Launcher& launcher, const attn::DcpCombineParams& params);
void sum_ranks(Launcher& launcher, const attn::SumRanksParams& params);

}  // namespace attnbench::cuda
