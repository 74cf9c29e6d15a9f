// Ops that pass every call on: the base of those that change the arguments on the way.
#pragma once

#include <memory>
#include <string>
#include <vector>

#include "ops/ops.h"

namespace attnbench::matrix {

class ForwardingOps : public Ops {
 public:
  explicit ForwardingOps(Ops& inner) : inner_(inner) {}

  std::string device_name() const override { return inner_.device_name(); }
  int num_sms() const override { return inner_.num_sms(); }
  void force_kernel(std::string_view name) override { inner_.force_kernel(name); }
  std::unique_ptr<Buffer> allocate(std::size_t size_bytes, const std::string& name) override {
    return inner_.allocate(size_bytes, name);
  }
  void upload(Buffer& destination, const void* source, std::size_t size_bytes) override {
    inner_.upload(destination, source, size_bytes);
  }
  void download(void* destination, Buffer& source, std::size_t size_bytes) override {
    inner_.download(destination, source, size_bytes);
  }
  void poison(Buffer& buffer) override { inner_.poison(buffer); }
  void synchronize() override { inner_.synchronize(); }
  void wait() override { inner_.wait(); }
  std::vector<KernelInfo> take_kernels() override { return inner_.take_kernels(); }

#define ATTNBENCH_FORWARD_1(name, A) \
  void name(const attn::A& a) override { inner_.name(a); }
#define ATTNBENCH_FORWARD_2(name, A, B) \
  void name(const attn::A& a, const attn::B& b) override { inner_.name(a, b); }
  ATTNBENCH_FORWARD_1(attend, AttendParams)
  ATTNBENCH_FORWARD_2(attend_splits, AttendParams, SplitParams)
  ATTNBENCH_FORWARD_2(combine_splits, AttendParams, SplitParams)
  ATTNBENCH_FORWARD_2(attend_segments, AttendParams, SegmentParams)
  ATTNBENCH_FORWARD_2(reduce_segments, AttendParams, SegmentParams)
  ATTNBENCH_FORWARD_1(merge, MergeParams)
  ATTNBENCH_FORWARD_1(write_cache, CacheWriteParams)
  ATTNBENCH_FORWARD_1(quantise_int8, Int8QuantiseParams)
  ATTNBENCH_FORWARD_1(write_cache_int8, Int8CacheWriteParams)
  ATTNBENCH_FORWARD_2(save_and_attend_int8, Int8CacheWriteParams, AttendParams)
  ATTNBENCH_FORWARD_1(quantise_pad_fp8, PadQuantiseParams)
  ATTNBENCH_FORWARD_1(amax, AmaxParams)
  ATTNBENCH_FORWARD_1(update_amax_history, AmaxHistoryParams)
  ATTNBENCH_FORWARD_1(calc_kv_scales, KvScaleParams)
  ATTNBENCH_FORWARD_1(rope, RopeParams)
  ATTNBENCH_FORWARD_2(rope_and_write_cache, RopeParams, CacheWriteParams)
  ATTNBENCH_FORWARD_2(rope_and_write_mla_cache, RopeParams, MlaCacheWriteParams)
  ATTNBENCH_FORWARD_2(attend_plan, AttendParams, PlanParams)
  ATTNBENCH_FORWARD_2(combine_plan, AttendParams, PlanParams)
  ATTNBENCH_FORWARD_2(attend_sparse, AttendParams, SparseParams)
  void attend_sparse_plan(const attn::AttendParams& params, const attn::SparseParams& sparse,
                          const attn::PlanParams& plan) override {
    inner_.attend_sparse_plan(params, sparse, plan);
  }
  ATTNBENCH_FORWARD_1(matmul, MatmulParams)
  ATTNBENCH_FORWARD_1(prepare_matmul, MatmulParams)
  ATTNBENCH_FORWARD_1(write_mla_cache, MlaCacheWriteParams)
  ATTNBENCH_FORWARD_1(gather_mla, MlaGatherParams)
  ATTNBENCH_FORWARD_1(cp_gather, CpGatherParams)
  ATTNBENCH_FORWARD_1(upconvert_ds_mla, DsMlaUpconvertParams)
  ATTNBENCH_FORWARD_1(concat, ConcatParams)
  ATTNBENCH_FORWARD_1(gather_rows, GatherRowsParams)
  ATTNBENCH_FORWARD_1(copy, CopyParams)
  ATTNBENCH_FORWARD_1(quantise_fp8, StaticQuantiseParams)
  ATTNBENCH_FORWARD_1(quantise_fp8_groups, GroupQuantiseParams)
  ATTNBENCH_FORWARD_1(quantise_nvfp4, Nvfp4QuantiseParams)
  ATTNBENCH_FORWARD_1(correct_dcp, DcpCorrectParams)
  ATTNBENCH_FORWARD_1(combine_dcp, DcpCombineParams)
  ATTNBENCH_FORWARD_1(sum_ranks, SumRanksParams)
#undef ATTNBENCH_FORWARD_1
#undef ATTNBENCH_FORWARD_2

 protected:
  Ops& inner() { return inner_; }

 private:
  Ops& inner_;
};

}  // namespace attnbench::matrix
