#include "ops/cuda/kernel_ops.h"

#include "core/error.h"
#include "ops/cuda/operations.h"

namespace attnbench::cuda {
namespace {

[[noreturn]] void lacks_kernel(const char* operation) {
  fail(ErrorKind::kUnsupported, "{} has no CUDA kernel yet", operation);
}

}  // namespace

void KernelOps::merge(const attn::MergeParams& params) { cuda::merge(launcher(), params); }
void KernelOps::write_cache(const attn::CacheWriteParams& params) {
  cuda::write_cache(launcher(), params);
}
void KernelOps::rope(const attn::RopeParams& params) { cuda::rope(launcher(), params); }
void KernelOps::rope_and_write_cache(const attn::RopeParams& rope,
                                     const attn::CacheWriteParams& write) {
  cuda::rope_and_write_cache(launcher(), rope, write);
}
void KernelOps::gather_mla(const attn::MlaGatherParams& params) {
  cuda::gather_mla(launcher(), params);
}
void KernelOps::cp_gather(const attn::CpGatherParams& params) {
  cuda::cp_gather(launcher(), params);
}

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
void KernelOps::quantise_int8(const attn::Int8QuantiseParams&) { lacks_kernel("quantise_int8"); }
void KernelOps::write_cache_int8(const attn::Int8CacheWriteParams&) {
  lacks_kernel("write_cache_int8");
}
void KernelOps::save_and_attend_int8(const attn::Int8CacheWriteParams&, const attn::AttendParams&) {
  lacks_kernel("save_and_attend_int8");
}
void KernelOps::quantise_pad_fp8(const attn::PadQuantiseParams&) {
  lacks_kernel("quantise_pad_fp8");
}
void KernelOps::amax(const attn::AmaxParams&) { lacks_kernel("amax"); }
void KernelOps::update_amax_history(const attn::AmaxHistoryParams&) {
  lacks_kernel("update_amax_history");
}
void KernelOps::calc_kv_scales(const attn::KvScaleParams&) { lacks_kernel("calc_kv_scales"); }
void KernelOps::rope_and_write_mla_cache(const attn::RopeParams&,
                                         const attn::MlaCacheWriteParams&) {
  lacks_kernel("rope_and_write_mla_cache");
}
void KernelOps::attend_plan(const attn::AttendParams&, const attn::PlanParams&) {
  lacks_kernel("attend_plan");
}
void KernelOps::combine_plan(const attn::AttendParams&, const attn::PlanParams&) {
  lacks_kernel("combine_plan");
}
void KernelOps::attend_sparse(const attn::AttendParams&, const attn::SparseParams&) {
  lacks_kernel("attend_sparse");
}
void KernelOps::attend_sparse_plan(const attn::AttendParams&, const attn::SparseParams&,
                                   const attn::PlanParams&) {
  lacks_kernel("attend_sparse_plan");
}
void KernelOps::matmul(const attn::MatmulParams&) { lacks_kernel("matmul"); }
void KernelOps::write_mla_cache(const attn::MlaCacheWriteParams&) {
  lacks_kernel("write_mla_cache");
}
void KernelOps::upconvert_ds_mla(const attn::DsMlaUpconvertParams&) {
  lacks_kernel("upconvert_ds_mla");
}
void KernelOps::concat(const attn::ConcatParams&) { lacks_kernel("concat"); }
void KernelOps::gather_rows(const attn::GatherRowsParams&) { lacks_kernel("gather_rows"); }
void KernelOps::copy(const attn::CopyParams&) { lacks_kernel("copy"); }
void KernelOps::quantise_fp8(const attn::StaticQuantiseParams&) { lacks_kernel("quantise_fp8"); }
void KernelOps::quantise_fp8_groups(const attn::GroupQuantiseParams&) {
  lacks_kernel("quantise_fp8_groups");
}
void KernelOps::quantise_nvfp4(const attn::Nvfp4QuantiseParams&) { lacks_kernel("quantise_nvfp4"); }
void KernelOps::correct_dcp(const attn::DcpCorrectParams&) { lacks_kernel("correct_dcp"); }
void KernelOps::combine_dcp(const attn::DcpCombineParams&) { lacks_kernel("combine_dcp"); }

}  // namespace attnbench::cuda
