// Ops whose query, key and value rows lie apart in memory, with NaN bytes between them, although
// the pipeline gave them without gaps: non-contiguous views (semantics §18.1) for every backend.
#pragma once

#include <cstdint>
#include <deque>
#include <vector>

#include "ops/forwarding_ops.h"

namespace attnbench::matrix {

class StridedOps final : public ForwardingOps {
 public:
  using ForwardingOps::ForwardingOps;

  /// Views that were spread so far.
  int num_views() const { return num_views_; }

  void attend(const attn::AttendParams& p) override;
  void attend_splits(const attn::AttendParams& p, const attn::SplitParams& split) override;
  void attend_segments(const attn::AttendParams& p, const attn::SegmentParams& segments) override;
  void attend_plan(const attn::AttendParams& p, const attn::PlanParams& plan) override;
  void attend_sparse(const attn::AttendParams& p, const attn::SparseParams& sparse) override;
  void attend_sparse_plan(const attn::AttendParams& p, const attn::SparseParams& sparse,
                          const attn::PlanParams& plan) override;
  void write_cache(const attn::CacheWriteParams& p) override;
  void write_cache_int8(const attn::Int8CacheWriteParams& p) override;
  void save_and_attend_int8(const attn::Int8CacheWriteParams& save,
                            const attn::AttendParams& p) override;
  void save_and_attend_splits_int8(const attn::Int8CacheWriteParams& save,
                                   const attn::AttendParams& p,
                                   const attn::SplitParams& split) override;
  void write_mla_cache(const attn::MlaCacheWriteParams& p) override;
  void quantise_int8(const attn::Int8QuantiseParams& p) override;
  void rotate_heads(const attn::RotateHeadsParams& p) override;
  void quantise_pad_fp8(const attn::PadQuantiseParams& p) override;
  void amax(const attn::AmaxParams& p) override;
  void matmul(const attn::MatmulParams& p) override;
  void quantise_fp8(const attn::StaticQuantiseParams& p) override;
  void quantise_fp8_groups(const attn::GroupQuantiseParams& p) override;
  void quantise_nvfp4(const attn::Nvfp4QuantiseParams& p) override;
  void correct_dcp(const attn::DcpCorrectParams& p) override;
  void combine_dcp(const attn::DcpCombineParams& p) override;
  void write_index_cache(const attn::IndexCacheWriteParams& p) override;
  void index_logits(const attn::IndexLogitsParams& p) override;
  void index_topk(const attn::IndexTopkParams& p) override;

 private:
  static constexpr std::int64_t kGap = 24;  // elements

  /// A copy of `rows` rows of `width` elements with `gap` of them behind each; `stride` is that of
  /// the rows, in elements, and becomes that of the copy. Freed by the next call of an operation.
  const void* spread(const void* source, attn::i64& stride, std::int64_t rows, std::int64_t width,
                     attn::Element element, std::int64_t gap = kGap);
  attn::AttendParams spread_views(attn::AttendParams p);
  attn::Int8CacheWriteParams spread_rows(attn::Int8CacheWriteParams p);
  /// For arguments with source, source_row_stride, num_rows and num_columns.
  template <typename Params>
  Params spread_source(Params p) {
    p.source = spread(p.source, p.source_row_stride, p.num_rows, p.num_columns, p.source_element);
    return p;
  }

  std::deque<std::vector<std::byte>> copies_;
  int num_views_ = 0;
};

}  // namespace attnbench::matrix
