// The operations of Ops as kernel launches, whatever takes the launches and holds the memory.
#pragma once

#include "ops/cuda/launcher.h"
#include "ops/ops.h"

namespace attnbench::cuda {

/// What a kernel does not do yet throws an Error of kind kUnsupported that says so.
class KernelOps : public Ops {
 public:
  int num_sms() const override;
  void force_kernel(std::string_view name) override;
  void attend(const attn::AttendParams& params) override;
  void attend_splits(const attn::AttendParams& params, const attn::SplitParams& split) override;
  void combine_splits(const attn::AttendParams& params, const attn::SplitParams& split) override;
  void attend_segments(const attn::AttendParams& params,
                       const attn::SegmentParams& segments) override;
  void reduce_segments(const attn::AttendParams& params,
                       const attn::SegmentParams& segments) override;
  void merge(const attn::MergeParams& params) override;
  void write_cache(const attn::CacheWriteParams& params) override;
  void quantise_int8(const attn::Int8QuantiseParams& params) override;
  void write_cache_int8(const attn::Int8CacheWriteParams& params) override;
  void save_and_attend_int8(const attn::Int8CacheWriteParams& save,
                            const attn::AttendParams& params) override;
  void quantise_pad_fp8(const attn::PadQuantiseParams& params) override;
  void amax(const attn::AmaxParams& params) override;
  void update_amax_history(const attn::AmaxHistoryParams& params) override;
  void calc_kv_scales(const attn::KvScaleParams& params) override;
  void rope(const attn::RopeParams& params) override;
  void rope_and_write_cache(const attn::RopeParams& rope,
                            const attn::CacheWriteParams& write) override;
  void rope_and_write_mla_cache(const attn::RopeParams& rope,
                                const attn::MlaCacheWriteParams& write) override;
  void attend_plan(const attn::AttendParams& params, const attn::PlanParams& plan) override;
  void combine_plan(const attn::AttendParams& params, const attn::PlanParams& plan) override;
  void attend_sparse(const attn::AttendParams& params, const attn::SparseParams& sparse) override;
  void attend_sparse_plan(const attn::AttendParams& params, const attn::SparseParams& sparse,
                          const attn::PlanParams& plan) override;
  void matmul(const attn::MatmulParams& params) override;
  void write_mla_cache(const attn::MlaCacheWriteParams& params) override;
  void gather_mla(const attn::MlaGatherParams& params) override;
  void cp_gather(const attn::CpGatherParams& params) override;
  void upconvert_ds_mla(const attn::DsMlaUpconvertParams& params) override;
  void concat(const attn::ConcatParams& params) override;
  void gather_rows(const attn::GatherRowsParams& params) override;
  void copy(const attn::CopyParams& params) override;
  void quantise_fp8(const attn::StaticQuantiseParams& params) override;
  void quantise_fp8_groups(const attn::GroupQuantiseParams& params) override;
  void quantise_nvfp4(const attn::Nvfp4QuantiseParams& params) override;
  void correct_dcp(const attn::DcpCorrectParams& params) override;
  void combine_dcp(const attn::DcpCombineParams& params) override;
  void sum_ranks(const attn::SumRanksParams& params) override;

 protected:
  virtual Launcher& launcher() = 0;
  const Launcher& launcher() const { return const_cast<KernelOps*>(this)->launcher(); }
};

}  // namespace attnbench::cuda
