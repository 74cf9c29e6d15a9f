// What the CTAs of latent.cuh work on: items, each a row tile of a request with a run of its keys,
// and where the results of an item go. Every CTA goes through its items [first(), end()) in steps
// of step(); the warpgroups of a CTA do so side by side, so item() gives all of them the same.
// Which rows make a tile, and which keys they see, is said by Rows: LatentRows here, ListedRows in
// gathered_parts.cuh.
#pragma once

#include "kernels/attention/general_parts.cuh"
#include "kernels/attention/latent/latent_layout.cuh"
#include "kernels/ptx/wgmma_latent.cuh"

namespace attn {

struct LatentItem {
  RowTile tile;
  LatentKeys keys;
  bool is_whole;  // the request is finished here; else a partial result is left
  int split;
  i64 partial_row;  // of the tile's first row, in [rows, H] of partial results
};

/// All packed rows of a request, against its keys in order.
struct LatentRows {
  const AttendParams& params;

  /// Of the longest query. Hidden, so that it is worked out again for every item, for want of
  /// registers to hold it.
  __device__ __forceinline__ int num_tiles() const {
    return (hidden(params.max_query_len) * params.num_heads + kLatentRows - 1) / kLatentRows;
  }
  __device__ __forceinline__ LatentItem item(int request, int index) const {
    LatentItem item{};
    item.tile = row_tile(params, request, 0, index * kLatentRows, kLatentRows);
    item.is_whole = true;
    return item;
  }
  __device__ __forceinline__ int num_keys(const LatentItem& item) const {
    return item.tile.seq_len;
  }
  __device__ __forceinline__ void see(LatentItem& item, KeyInterval run) const {
    const RowTile& tile = item.tile;
    item.keys = latent_keys(run, tile.context_len, tile.first_row, tile.num_rows, tile.group);
  }
};

/// Whole requests, dealt out in turns. Grid: any number of CTAs.
template <class Rows>
struct WholeItems {
  Rows rows;

  __device__ int first() const { return this_cta(); }
  __device__ int step() const { return num_ctas(); }
  __device__ int end() const { return rows.params.num_requests * rows.num_tiles(); }
  __device__ LatentItem item(int at) const {
    const int tiles = rows.num_tiles();
    LatentItem item = rows.item(rows.params.first_request + at / tiles, at % tiles);
    rows.see(item, {0, rows.num_keys(item)});
    return item;
  }
  __device__ float* partial_output() const { return nullptr; }
  __device__ void store_partial_lse(const LatentItem&, int, float) const {}
};
using LatentWhole = WholeItems<LatentRows>;

/// Splits of split-KV decoding, likewise.
struct LatentSplits {
  LatentRows rows;
  const SplitParams& split;

  __device__ int first() const { return this_cta(); }
  __device__ int step() const { return num_ctas(); }
  __device__ int end() const {
    return rows.params.num_requests * split.num_splits * rows.num_tiles();
  }
  __device__ LatentItem item(int at) const {
    const int tiles = rows.num_tiles();
    const int rest = at / tiles;
    LatentItem item = rows.item(rows.params.first_request + rest / split.num_splits, at % tiles);
    item.is_whole = false;
    item.split = rest % split.num_splits;
    rows.see(item, keys_of_split(item.tile.seq_len, split.num_splits, item.split));
    item.partial_row =
        (item.split * split.num_tokens + item.tile.first_token) * rows.params.num_heads +
        item.tile.first_row;
    return item;
  }
  __device__ float* partial_output() const { return split.partial_output; }
  __device__ void store_partial_lse(const LatentItem& item, int row, float lse) const {
    const i64 head = static_cast<i64>(item.split) * rows.params.num_heads + head_of(item.tile, row);
    split.partial_lse[head * split.num_tokens + token_of(item.tile, row)] = lse;
  }
};

/// The parts of a plan. Grid: row tiles * parts, the tile fastest, so that the CTAs that read the
/// same keys run at the same time.
template <class Rows>
struct PlanItems {
  Rows rows;
  const PlanParams& plan;

  __device__ int part() const { return this_cta() / rows.num_tiles(); }
  __device__ const int* record() const {
    return plan.parts + static_cast<i64>(part()) * kPlanRecord;
  }
  __device__ int first() const { return record()[0]; }
  __device__ int step() const { return 1; }
  __device__ int end() const { return record()[1] + 1; }
  __device__ LatentItem item(int at) const {
    const AttendParams& params = rows.params;
    const int index = this_cta() % rows.num_tiles();
    LatentItem item = rows.item(params.first_request + at, index);
    const GeneralPlanItem share = plan_item(params, plan, part(), at, rows.num_keys(item));
    item.is_whole = share.is_whole;
    item.split = share.split;
    rows.see(item, share.run);
    item.partial_row = share.first_row * params.num_heads + item.tile.first_row;
    return item;
  }
  __device__ float* partial_output() const { return plan.partial_output; }
  __device__ void store_partial_lse(const LatentItem& item, int row, float lse) const {
    plan.partial_lse[item.partial_row + row] = lse;
  }
};
using LatentPlan = PlanItems<LatentRows>;

/// What the loads of a tile need to know of its keys.
struct LatentPage {
  int block;  // of the cache; -1: past the end, reads zeros and touches no memory
  int slot;
};
/// The box of this lane of the tile that starts with key `first`.
template <class Config>
__device__ __forceinline__ LatentPage page_of(const int* table, int first, int end) {
  constexpr int kBox = latent_key_box(Config::kBlockSize);
  const int lane = this_thread() % 32;
  const int key = first + lane * kBox;
  if (lane >= kLatentKeys / kBox || key >= end) return {-1, 0};
  return {table[key / Config::kBlockSize],
          kBox == Config::kBlockSize ? 0 : key % Config::kBlockSize};
}

}  // namespace attn
