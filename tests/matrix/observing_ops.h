// Ops that note what the pipelines gave them, so that a test can tell that its case was one.
#pragma once

#include <set>
#include <utility>

#include "forwarding_ops.h"

namespace attnbench::matrix {

class ObservingOps final : public ForwardingOps {
 public:
  using ForwardingOps::ForwardingOps;

  bool saw_negative_slot() const { return saw_negative_slot_; }
  /// Whether two requests of a call named the same page.
  bool saw_shared_page() const { return saw_shared_page_; }

  void write_cache(const attn::CacheWriteParams& p) override {
    look_at_slots(p.slot_mapping, p.num_slots);
    inner().write_cache(p);
  }
  void write_cache_int8(const attn::Int8CacheWriteParams& p) override {
    look_at_slots(p.slot_mapping, p.num_tokens);
    inner().write_cache_int8(p);
  }
  void write_mla_cache(const attn::MlaCacheWriteParams& p) override {
    look_at_slots(p.slot_mapping, p.num_slots);
    inner().write_mla_cache(p);
  }
  void rope_and_write_cache(const attn::RopeParams& rope,
                            const attn::CacheWriteParams& p) override {
    look_at_slots(p.slot_mapping, p.num_slots);
    inner().rope_and_write_cache(rope, p);
  }
  void rope_and_write_mla_cache(const attn::RopeParams& rope,
                                const attn::MlaCacheWriteParams& p) override {
    look_at_slots(p.slot_mapping, p.num_slots);
    inner().rope_and_write_mla_cache(rope, p);
  }
  void attend(const attn::AttendParams& p) override {
    look_at_table(p);
    inner().attend(p);
  }
  void attend_splits(const attn::AttendParams& p, const attn::SplitParams& split) override {
    look_at_table(p);
    inner().attend_splits(p, split);
  }
  void attend_segments(const attn::AttendParams& p, const attn::SegmentParams& parts) override {
    look_at_table(p);
    inner().attend_segments(p, parts);
  }
  void attend_plan(const attn::AttendParams& p, const attn::PlanParams& plan) override {
    look_at_table(p);
    inner().attend_plan(p, plan);
  }
  void save_and_attend_int8(const attn::Int8CacheWriteParams& save,
                            const attn::AttendParams& p) override {
    look_at_table(p);
    inner().save_and_attend_int8(save, p);
  }
  void attend_sparse(const attn::AttendParams& p, const attn::SparseParams& sparse) override {
    look_at_lists(p, sparse);
    inner().attend_sparse(p, sparse);
  }
  void attend_sparse_plan(const attn::AttendParams& p, const attn::SparseParams& sparse,
                          const attn::PlanParams& plan) override {
    look_at_lists(p, sparse);
    inner().attend_sparse_plan(p, sparse, plan);
  }

 private:
  void look_at_slots(const attn::i64* slots, attn::i64 count) {
    for (attn::i64 n = 0; slots != nullptr && n < count; ++n) {
      saw_negative_slot_ = saw_negative_slot_ || slots[n] < 0;
    }
  }

  void look_at_table(const attn::AttendParams& p) {
    if (p.kv.block_table == nullptr) return;
    std::set<int> seen;
    for (int b = p.first_request; b < p.first_request + p.num_requests; ++b) {
      for (int c = 0; c * p.kv.block_size < p.seq_lens[b]; ++c) {
        saw_shared_page_ = saw_shared_page_ ||
                           !seen.insert(p.kv.block_table[b * p.kv.block_table_stride + c]).second;
      }
    }
  }

  /// Pages that the lists of two requests name.
  void look_at_lists(const attn::AttendParams& p, const attn::SparseParams& sparse) {
    std::set<std::pair<int, int>> seen;  // page, request
    for (int b = p.first_request; b < p.first_request + p.num_requests; ++b) {
      for (attn::i64 k = p.query_start_loc[b] * sparse.slots_stride;
           k < p.query_start_loc[b + 1] * sparse.slots_stride; ++k) {
        if (sparse.slots[k] >= 0) seen.insert({sparse.slots[k] / p.kv.block_size, b});
      }
    }
    std::set<int> pages;
    for (const auto& [page, request] : seen) {
      saw_shared_page_ = saw_shared_page_ || !pages.insert(page).second;
    }
  }

  bool saw_negative_slot_ = false;
  bool saw_shared_page_ = false;
};

}  // namespace attnbench::matrix
