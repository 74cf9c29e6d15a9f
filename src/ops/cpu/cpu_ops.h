// The operations of ops.h on CPU threads, one function each; make_cpu_ops wraps them.
#pragma once

#include <vector>

#include "core/parallel.h"
#include "kernels/params.h"
#include "kernels/params_dcp.h"
#include "kernels/params_int8.h"
#include "kernels/params_mla.h"
#include "kernels/params_mm.h"
#include "kernels/params_quant.h"
#include "kernels/params_rope.h"
#include "kernels/params_scale.h"
#include "ops/cpu/scratch.h"

namespace attnbench::cpu {

/// Threads and the working memory of each.
struct Workers {
  explicit Workers(int num_threads)
      : pool(num_threads), scratch(static_cast<std::size_t>(pool.num_threads())) {}
  ThreadPool pool;
  std::vector<Scratch> scratch;
};

void attend(const attn::AttendParams& params, Workers& workers);
void attend_splits(const attn::AttendParams& params, const attn::SplitParams& split,
                   Workers& workers);
void combine_splits(const attn::AttendParams& params, const attn::SplitParams& split,
                    Workers& workers);
void attend_segments(const attn::AttendParams& params, const attn::SegmentParams& segments,
                     Workers& workers);
void reduce_segments(const attn::AttendParams& params, const attn::SegmentParams& segments,
                     Workers& workers);
void merge(const attn::MergeParams& params, Workers& workers);
void write_cache(const attn::CacheWriteParams& params, Workers& workers);
void quantise_int8(const attn::Int8QuantiseParams& params, Workers& workers);
void write_cache_int8(const attn::Int8CacheWriteParams& params, Workers& workers);
void quantise_pad_fp8(const attn::PadQuantiseParams& params, Workers& workers);
void amax(const attn::AmaxParams& params, Workers& workers);
void update_amax_history(const attn::AmaxHistoryParams& params);
void calc_kv_scales(const attn::KvScaleParams& params);
void rope(const attn::RopeParams& params, Workers& workers);

void attend_plan(const attn::AttendParams& params, const attn::PlanParams& plan, Workers& workers);
void combine_plan(const attn::AttendParams& params, const attn::PlanParams& plan, Workers& workers);
void attend_sparse(const attn::AttendParams& params, const attn::SparseParams& sparse,
                   Workers& workers);
void attend_sparse_plan(const attn::AttendParams& params, const attn::SparseParams& sparse,
                        const attn::PlanParams& plan, Workers& workers);
void matmul(const attn::MatmulParams& params, Workers& workers);
void write_mla_cache(const attn::MlaCacheWriteParams& params, Workers& workers);
void gather_mla(const attn::MlaGatherParams& params, Workers& workers);
void cp_gather(const attn::CpGatherParams& params, Workers& workers);
void upconvert_ds_mla(const attn::DsMlaUpconvertParams& params, Workers& workers);
void concat(const attn::ConcatParams& params, Workers& workers);
void gather_rows(const attn::GatherRowsParams& params, Workers& workers);
void copy(const attn::CopyParams& params, Workers& workers);
void quantise_fp8(const attn::StaticQuantiseParams& params, Workers& workers);
void quantise_fp8_groups(const attn::GroupQuantiseParams& params, Workers& workers);
void quantise_nvfp4(const attn::Nvfp4QuantiseParams& params, Workers& workers);
void correct_dcp(const attn::DcpCorrectParams& params, Workers& workers);
void combine_dcp(const attn::DcpCombineParams& params, Workers& workers);
void sum_ranks(const attn::SumRanksParams& params, Workers& workers);

}  // namespace attnbench::cpu
