// Ops that note what the pipelines gave them, so that a test can tell that its case was one.
#pragma once

#include <set>
#include <utility>

#include "ops/forwarding_ops.h"

namespace attnbench::matrix {

class ObservingOps final : public ForwardingOps {
 public:
  using ForwardingOps::ForwardingOps;

  bool saw_negative_slot() const { return saw_negative_slot_; }
  /// Whether two requests of a call named the same page.
  bool saw_shared_page() const { return saw_shared_page_; }

#define ATTNBENCH_OPERATION(name, parameters, arguments) \
  void name parameters override {                        \
    look arguments;                                      \
    inner().name arguments;                              \
  }
#include "ops/operations.def"

 private:
  /// The parameter structs of one call, each by what look_at() knows of its kind.
  template <typename... Params>
  void look(const Params&... params) {
    (look_at(params), ...);
  }
  void look(const attn::AttendParams& p, const attn::SparseParams& sparse) {
    look_at_lists(p, sparse);
  }
  void look(const attn::AttendParams& p, const attn::SparseParams& sparse,
            const attn::PlanParams&) {
    look_at_lists(p, sparse);
  }

  template <typename Params>
  void look_at(const Params&) {}
  void look_at(const attn::CacheWriteParams& p) { look_at_slots(p.slot_mapping, p.num_slots); }
  void look_at(const attn::Int8CacheWriteParams& p) { look_at_slots(p.slot_mapping, p.num_tokens); }
  void look_at(const attn::MlaCacheWriteParams& p) { look_at_slots(p.slot_mapping, p.num_slots); }
  void look_at(const attn::AttendParams& p) {
    if (p.kv.block_table == nullptr) return;
    std::set<int> seen;
    for (int b = p.first_request; b < p.first_request + p.num_requests; ++b) {
      for (int c = 0; c * p.kv.block_size < p.seq_lens[b]; ++c) {
        saw_shared_page_ = saw_shared_page_ ||
                           !seen.insert(p.kv.block_table[b * p.kv.block_table_stride + c]).second;
      }
    }
  }

  void look_at_slots(const attn::i64* slots, attn::i64 count) {
    for (attn::i64 n = 0; slots != nullptr && n < count; ++n) {
      saw_negative_slot_ = saw_negative_slot_ || slots[n] < 0;
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
