// Sparse MLA (semantics §8.9): every token attends to its own list of cache slots.
//
// Rows of a block are heads of one token, because each token has a list of its own; the keys of the
// list are gathered into tiles, skipping slots that are negative or beyond the cache, and go
// through the products and the softmax of dense attention. A key is also the value: its first Dv
// elements.
#include <algorithm>
#include <cstring>

#include "core/error.h"
#include "kernels/params_mla.h"
#include "ops/cpu/attention/attend_block.h"
#include "ops/cpu/attention/attend_plan.h"
#include "ops/cpu/attention/online_softmax.h"
#include "ops/cpu/attention/products.h"
#include "ops/cpu/cache/ds_mla_entry.h"
#include "ops/cpu/cpu_ops.h"
#include "ops/cpu/rows.h"

namespace attnbench::cpu {
namespace {

/// The arguments with what the dense code would look at made harmless: no mask, no sinks, and
/// topk keys for every request.
class SparseProblem {
 public:
  SparseProblem(const attn::AttendParams& params, const attn::SparseParams& sparse)
      : params_(params),
        sparse_(sparse),
        seq_lens_(static_cast<std::size_t>(params.first_request + params.num_requests),
                  sparse.topk) {
    params_.seq_lens = seq_lens_.data();
    params_.num_kv_heads = 1;
    params_.score = {};
    params_.int8 = {};
    params_.score.softmax_scale = params.score.softmax_scale;
    params_.score.window_left = params_.score.window_right = -1;
    fill_codes();
  }
  SparseProblem(const SparseProblem&) = delete;
  SparseProblem& operator=(const SparseProblem&) = delete;

  const attn::AttendParams& params() const { return params_; }

  /// Every (token, up to kRowTile heads) of a request.
  void add_blocks(int request, std::vector<RowBlock>& blocks) const {
    const int query_len = params_.query_start_loc[request + 1] - params_.query_start_loc[request];
    for (int i = 0; i < query_len; ++i) {
      for (int head = 0; head < params_.num_heads; head += kRowTile) {
        blocks.push_back({request, 0, std::int64_t{i} * params_.num_heads + head,
                          std::min(kRowTile, params_.num_heads - head)});
      }
    }
  }

  /// Leaves the state of the rows of `block` over the listed keys of `run` in `scratch`.
  void attend(const RowBlock& block, KeyRun run, Scratch& scratch) const {
    scratch.reserve(params_.head_size, params_.v_head_size, 0);
    load_rows(params_, block, false, scratch);
    const std::int64_t token = place_of_row(params_, block, 0).token;
    const std::int64_t length =
        sparse_.topk_length == nullptr ? sparse_.topk : sparse_.topk_length[token];
    const std::int64_t end = std::min({run.end, std::int64_t{sparse_.topk}, length});
    const int* slots = sparse_.slots + token * sparse_.slots_stride;
    int keys = 0;
    for (std::int64_t i = run.begin; i < end; ++i) {
      if (slots[i] < 0 || slots[i] >= sparse_.num_slots) continue;
      load_key(slots[i], keys++, scratch);
      if (keys < kKeyTile) continue;
      fold_tile(keys, scratch);
      keys = 0;
    }
    if (keys > 0) fold_tile(keys, scratch);
  }

 private:
  void fill_codes() {
    if (sparse_.format == attn::MlaEntry::kCopy) return;
    const bool scaled = sparse_.format == attn::MlaEntry::kE4M3 && params_.kv.k_scale != nullptr;
    fill_e4m3_codes(codes_);
    for (float& value : codes_) value *= scaled ? params_.kv.k_scale[0] : 1.0f;
  }

  /// Element by which a slot's address is counted; an entry of "fp8_ds_mla" is counted in bytes.
  attn::Element element() const {
    switch (sparse_.format) {
      case attn::MlaEntry::kCopy:
        return params_.kv.element;
      case attn::MlaEntry::kE4M3:
        return attn::Element::kE4M3;
      case attn::MlaEntry::kDsMla:
      case attn::MlaEntry::kModel1:
        return attn::Element::kU8;
    }
    return params_.kv.element;
  }

  /// Decodes the entry at `slot` into row `row` of the key tile, and its latent into the value
  /// tile.
  void load_key(attn::i64 slot, int row, Scratch& scratch) const {
    const attn::KvParams& kv = params_.kv;
    const char* entry = element_at(
        element(), kv.key,
        slot / kv.block_size * kv.block_stride + slot % kv.block_size * kv.token_stride_key);
    float* key = scratch.key.data() + std::int64_t{row} * params_.head_size;
    if (sparse_.format == attn::MlaEntry::kDsMla) {
      read_ds_mla_entry(reinterpret_cast<const std::uint8_t*>(entry), codes_, key);
    } else if (sparse_.format == attn::MlaEntry::kModel1) {
      const auto* scales = static_cast<const std::uint8_t*>(kv.key) +
                           slot / kv.block_size * kv.block_stride +
                           model1_scales_at(kv.block_size, slot % kv.block_size);
      read_model1_entry(reinterpret_cast<const std::uint8_t*>(entry), scales, codes_, key);
    } else {
      decode_row(element(), entry, params_.head_size, codes_, key);
    }
    std::copy_n(key, params_.v_head_size,
                scratch.value.data() + std::int64_t{row} * params_.v_head_size);
  }

  /// Folds the gathered keys; no mask, since every key of the list counts for every head.
  void fold_tile(int keys, Scratch& scratch) const {
    const int rows = scratch.row_stride;
    const int depth = params_.head_size;
    const int width = params_.v_head_size;
    if (scratch.small) {
      multiply_scores_small(scratch.query.data(), scratch.key.data(), scratch.num_rows, keys, depth,
                            rows, scratch.scores.data());
    } else {
      multiply_scores(scratch.query.data(), scratch.key.data(), rows, keys, depth,
                      scratch.scores.data());
    }
    fold_scores(keys, scratch);
    rescale_output(width, scratch);
    if (scratch.small) {
      accumulate_output_small(scratch.scores.data(), scratch.value.data(), scratch.num_rows, keys,
                              width, rows, scratch.output.data());
    } else {
      accumulate_output(scratch.scores.data(), scratch.value.data(), rows, keys, width,
                        scratch.output.data());
    }
  }

  attn::AttendParams params_;
  const attn::SparseParams& sparse_;
  std::vector<int> seq_lens_;
  CodeTable codes_{};
};

void check_sparse(const attn::AttendParams& params, const attn::SparseParams& sparse) {
  if (sparse.format == attn::MlaEntry::kDsMla &&
      (params.head_size != attn::kDsMlaLatent + attn::kDsMlaRope ||
       params.v_head_size != attn::kDsMlaLatent)) {
    fail(ErrorKind::kShape, "fp8_ds_mla attention: expected head sizes 576 and 512, got {} and {}",
         params.head_size, params.v_head_size);
  }
  constexpr int kModel1Values = attn::kModel1Latent + attn::kModel1Rope;
  if (sparse.format == attn::MlaEntry::kModel1 &&
      (params.head_size != kModel1Values ||
       (params.v_head_size != attn::kModel1Latent && params.v_head_size != kModel1Values))) {
    fail(ErrorKind::kShape,
         "fp8_model1_mla attention: expected head sizes 512 and 448 or 512, got {} and {}",
         params.head_size, params.v_head_size);
  }
}

}  // namespace

void attend_sparse(const attn::AttendParams& params, const attn::SparseParams& sparse,
                   Workers& workers) {
  check_sparse(params, sparse);
  const SparseProblem problem(params, sparse);
  std::vector<RowBlock> blocks;
  for (int i = 0; i < params.num_requests; ++i) {
    problem.add_blocks(params.first_request + i, blocks);
  }
  workers.pool.parallel_for(
      static_cast<std::int64_t>(blocks.size()), [&](std::int64_t i, int thread) {
        const RowBlock& block = blocks[static_cast<std::size_t>(i)];
        Scratch& scratch = workers.scratch[static_cast<std::size_t>(thread)];
        problem.attend(block, {0, sparse.topk}, scratch);
        for (int row = 0; row < block.num_rows; ++row) {
          const RowPlace place = place_of_row(problem.params(), block, row);
          store_lse(params, place.token, place.head, row_lse(scratch, row));
          normalise_row(problem.params(), row, scratch);
          store_output_row(params, place.token, place.head, scratch.line.data());
        }
      });
}

void attend_sparse_plan(const attn::AttendParams& params, const attn::SparseParams& sparse,
                        const attn::PlanParams& plan, Workers& workers) {
  check_sparse(params, sparse);
  const SparseProblem problem(params, sparse);
  struct Task {
    PlanItem item;
    RowBlock block;
  };
  std::vector<Task> tasks;
  for (const PlanItem& item : plan_items(params, plan)) {
    std::vector<RowBlock> blocks;
    problem.add_blocks(item.request, blocks);
    for (const RowBlock& block : blocks) tasks.push_back({item, block});
  }
  workers.pool.parallel_for(
      static_cast<std::int64_t>(tasks.size()), [&](std::int64_t i, int thread) {
        const Task& task = tasks[static_cast<std::size_t>(i)];
        Scratch& scratch = workers.scratch[static_cast<std::size_t>(thread)];
        problem.attend(task.block, task.item.keys, scratch);
        store_plan_rows(problem.params(), plan, task.item, task.block, scratch);
      });
}

}  // namespace attnbench::cpu
