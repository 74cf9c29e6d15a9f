#include "ops/cuda/kernel_ops.h"

#include "ops/cuda/operations.h"

namespace attnbench::cuda {

int KernelOps::num_sms() const { return launcher().target().num_sms; }
void KernelOps::force_kernel(std::string_view name) { launcher().force_kernel(name); }
void KernelOps::attend(const attn::AttendParams& params) { cuda::attend(launcher(), params); }
void KernelOps::attend_splits(const attn::AttendParams& params, const attn::SplitParams& split) {
  cuda::attend_splits(launcher(), params, split);
}
void KernelOps::combine_splits(const attn::AttendParams& params, const attn::SplitParams& split) {
  cuda::combine_splits(launcher(), params, split);
}
void KernelOps::attend_segments(const attn::AttendParams& params,
                                const attn::SegmentParams& segments) {
  cuda::attend_segments(launcher(), params, segments);
}
void KernelOps::reduce_segments(const attn::AttendParams& params,
                                const attn::SegmentParams& segments) {
  cuda::reduce_segments(launcher(), params, segments);
}
void KernelOps::merge(const attn::MergeParams& params) { cuda::merge(launcher(), params); }
void KernelOps::write_cache(const attn::CacheWriteParams& params) {
  cuda::write_cache(launcher(), params);
}
void KernelOps::quantise_int8(const attn::Int8QuantiseParams& params) {
  cuda::quantise_int8(launcher(), params);
}
void KernelOps::write_cache_int8(const attn::Int8CacheWriteParams& params) {
  cuda::write_cache_int8(launcher(), params);
}
void KernelOps::save_and_attend_int8(const attn::Int8CacheWriteParams& save,
                                     const attn::AttendParams& params) {
  cuda::save_and_attend_int8(launcher(), save, params);
}
void KernelOps::quantise_pad_fp8(const attn::PadQuantiseParams& params) {
  cuda::quantise_pad_fp8(launcher(), params);
}
void KernelOps::amax(const attn::AmaxParams& params) { cuda::amax(launcher(), params); }
void KernelOps::update_amax_history(const attn::AmaxHistoryParams& params) {
  cuda::update_amax_history(launcher(), params);
}
void KernelOps::calc_kv_scales(const attn::KvScaleParams& params) {
  cuda::calc_kv_scales(launcher(), params);
}
void KernelOps::rope(const attn::RopeParams& params) { cuda::rope(launcher(), params); }
void KernelOps::rope_and_write_cache(const attn::RopeParams& rope,
                                     const attn::CacheWriteParams& write) {
  cuda::rope_and_write_cache(launcher(), rope, write);
}
void KernelOps::rope_and_write_mla_cache(const attn::RopeParams& rope,
                                         const attn::MlaCacheWriteParams& write) {
  cuda::rope_and_write_mla_cache(launcher(), rope, write);
}
void KernelOps::attend_plan(const attn::AttendParams& params, const attn::PlanParams& plan) {
  cuda::attend_plan(launcher(), params, plan);
}
void KernelOps::combine_plan(const attn::AttendParams& params, const attn::PlanParams& plan) {
  cuda::combine_plan(launcher(), params, plan);
}
void KernelOps::attend_sparse(const attn::AttendParams& params, const attn::SparseParams& sparse) {
  cuda::attend_sparse(launcher(), params, sparse);
}
void KernelOps::attend_sparse_plan(const attn::AttendParams& params,
                                   const attn::SparseParams& sparse, const attn::PlanParams& plan) {
  cuda::attend_sparse_plan(launcher(), params, sparse, plan);
}
void KernelOps::matmul(const attn::MatmulParams& params) { cuda::matmul(launcher(), params); }
void KernelOps::write_mla_cache(const attn::MlaCacheWriteParams& params) {
  cuda::write_mla_cache(launcher(), params);
}
void KernelOps::gather_mla(const attn::MlaGatherParams& params) {
  cuda::gather_mla(launcher(), params);
}
void KernelOps::cp_gather(const attn::CpGatherParams& params) {
  cuda::cp_gather(launcher(), params);
}
void KernelOps::upconvert_ds_mla(const attn::DsMlaUpconvertParams& params) {
  cuda::upconvert_ds_mla(launcher(), params);
}
void KernelOps::concat(const attn::ConcatParams& params) { cuda::concat(launcher(), params); }
void KernelOps::gather_rows(const attn::GatherRowsParams& params) {
  cuda::gather_rows(launcher(), params);
}
void KernelOps::copy(const attn::CopyParams& params) { cuda::copy(launcher(), params); }
void KernelOps::quantise_fp8(const attn::StaticQuantiseParams& params) {
  cuda::quantise_fp8(launcher(), params);
}
void KernelOps::quantise_fp8_groups(const attn::GroupQuantiseParams& params) {
  cuda::quantise_fp8_groups(launcher(), params);
}
void KernelOps::quantise_nvfp4(const attn::Nvfp4QuantiseParams& params) {
  cuda::quantise_nvfp4(launcher(), params);
}
void KernelOps::correct_dcp(const attn::DcpCorrectParams& params) {
  cuda::correct_dcp(launcher(), params);
}
void KernelOps::combine_dcp(const attn::DcpCombineParams& params) {
  cuda::combine_dcp(launcher(), params);
}
void KernelOps::sum_ranks(const attn::SumRanksParams& params) {
  cuda::sum_ranks(launcher(), params);
}

}  // namespace attnbench::cuda
