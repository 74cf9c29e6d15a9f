// What the CTAs of latent.cuh work on: items, each a row tile of a request with a run of its keys,
// and where the results of an item go. Every CTA goes through its items [first(), end()) in steps
// of step(); the warpgroups of a CTA do so side by side, so item() gives all of them the same.
#pragma once

#include "kernels/attention/general_parts.cuh"
#include "kernels/attention/hopper/latent_layout.cuh"
#include "kernels/ptx/wgmma_latent.cuh"

namespace attn {

struct LatentItem {
  RowTile tile;
  LatentKeys keys;
  bool is_whole;  // the request is finished here; else a partial result is left
  int split;
  i64 partial_row;  // of the tile's first row, in [rows, H] of partial results
};

/// Hidden, so that it is worked out again for every item, for want of registers to hold it.
__device__ __forceinline__ int latent_row_tiles(const AttendParams& params) {
  return (hidden(params.max_query_len) * params.num_heads + kLatentRows - 1) / kLatentRows;
}
__device__ __forceinline__ LatentItem latent_item(const AttendParams& params, int request,
                                                  int index) {
  LatentItem item{};
  item.tile = row_tile(params, request, 0, index * kLatentRows, kLatentRows);
  item.is_whole = true;
  return item;
}
__device__ __forceinline__ void see_keys(LatentItem& item, KeyInterval run) {
  const RowTile& tile = item.tile;
  item.keys = latent_keys(run, tile.context_len, tile.first_row, tile.num_rows, tile.group);
}

/// Whole requests, dealt out in turns. Grid: any number of CTAs.
struct LatentWhole {
  const AttendParams& params;

  __device__ int first() const { return this_cta(); }
  __device__ int step() const { return num_ctas(); }
  __device__ int end() const { return params.num_requests * latent_row_tiles(params); }
  __device__ LatentItem item(int at) const {
    const int tiles = latent_row_tiles(params);
    LatentItem item = latent_item(params, params.first_request + at / tiles, at % tiles);
    see_keys(item, {0, item.tile.seq_len});
    return item;
  }
  __device__ float* partial_output() const { return nullptr; }
  __device__ void store_partial_lse(const LatentItem&, int, float) const {}
};

/// Splits of split-KV decoding, likewise.
struct LatentSplits {
  const AttendParams& params;
  const SplitParams& split;

  __device__ int first() const { return this_cta(); }
  __device__ int step() const { return num_ctas(); }
  __device__ int end() const {
    return params.num_requests * split.num_splits * latent_row_tiles(params);
  }
  __device__ LatentItem item(int at) const {
    const int tiles = latent_row_tiles(params);
    const int rest = at / tiles;
    LatentItem item =
        latent_item(params, params.first_request + rest / split.num_splits, at % tiles);
    item.is_whole = false;
    item.split = rest % split.num_splits;
    see_keys(item, keys_of_split(item.tile.seq_len, split.num_splits, item.split));
    item.partial_row = (item.split * split.num_tokens + item.tile.first_token) * params.num_heads +
                       item.tile.first_row;
    return item;
  }
  __device__ float* partial_output() const { return split.partial_output; }
  __device__ void store_partial_lse(const LatentItem& item, int row, float lse) const {
    const i64 head = static_cast<i64>(item.split) * params.num_heads + head_of(item.tile, row);
    split.partial_lse[head * split.num_tokens + token_of(item.tile, row)] = lse;
  }
};

/// The parts of a plan. Grid: row tiles * parts, the tile fastest, so that the CTAs that read the
/// same keys run at the same time.
struct LatentPlan {
  const AttendParams& params;
  const PlanParams& plan;

  __device__ int part() const { return this_cta() / latent_row_tiles(params); }
  __device__ const int* record() const {
    return plan.parts + static_cast<i64>(part()) * kPlanRecord;
  }
  __device__ int first() const { return record()[0]; }
  __device__ int step() const { return 1; }
  __device__ int end() const { return record()[1] + 1; }
  __device__ LatentItem item(int at) const {
    const int index = this_cta() % latent_row_tiles(params);
    LatentItem item = latent_item(params, params.first_request + at, index);
    const GeneralPlanItem share = plan_item(params, plan, part(), at, item.tile.seq_len);
    item.is_whole = share.is_whole;
    item.split = share.split;
    see_keys(item, share.run);
    item.partial_row = share.first_row * params.num_heads + item.tile.first_row;
    return item;
  }
  __device__ float* partial_output() const { return plan.partial_output; }
  __device__ void store_partial_lse(const LatentItem& item, int row, float lse) const {
    plan.partial_lse[item.partial_row + row] = lse;
  }
};

}  // namespace attn
