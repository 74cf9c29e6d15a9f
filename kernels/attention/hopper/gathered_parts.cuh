// What the CTAs of gathered.cuh work on where every token has a list of keys: items as those of
// latent_parts.cuh, but rows of one token only, since its list is theirs; and how the place of a
// key is looked up, in a list or in the block table of a request.
#pragma once

#include "kernels/attention/hopper/gathered_layout.cuh"
#include "kernels/attention/hopper/latent_parts.cuh"

namespace attn {

/// Row tiles of the longest query: those of the heads of each of its tokens.
__device__ __forceinline__ int listed_head_tiles(const AttendParams& params) {
  return (hidden(params.num_heads) + kLatentRows - 1) / kLatentRows;
}
__device__ __forceinline__ int listed_row_tiles(const AttendParams& params) {
  return hidden(params.max_query_len) * listed_head_tiles(params);
}
__device__ __forceinline__ LatentItem listed_item(const AttendParams& params, int request,
                                                  int index) {
  const int tiles = listed_head_tiles(params);
  const int token = index / tiles;
  const int first_head = index % tiles * kLatentRows;
  LatentItem item{};
  RowTile& tile = item.tile;
  tile.request = request;
  tile.group = params.num_heads;
  tile.first_token = params.query_start_loc[request];
  tile.first_row = token * params.num_heads + first_head;
  const bool has_token = tile.first_token + token < params.query_start_loc[request + 1];
  tile.num_rows = has_token ? smaller(kLatentRows, params.num_heads - first_head) : 0;
  item.is_whole = true;
  return item;
}
/// Entries of the list of an item's token that count; none where there is no such token.
__device__ __forceinline__ int listed_keys(const SparseParams& sparse, const LatentItem& item) {
  if (item.tile.num_rows <= 0) return 0;
  if (sparse.topk_length == nullptr) return sparse.topk;
  return larger(0, smaller(sparse.topk, sparse.topk_length[token_of(item.tile, 0)]));
}

/// Whole lists, dealt out in turns. Grid: any number of CTAs.
struct ListedWhole {
  const AttendParams& params;
  const SparseParams& sparse;

  __device__ int first() const { return this_cta(); }
  __device__ int step() const { return num_ctas(); }
  __device__ int end() const { return params.num_requests * listed_row_tiles(params); }
  __device__ LatentItem item(int at) const {
    const int tiles = listed_row_tiles(params);
    LatentItem item = listed_item(params, params.first_request + at / tiles, at % tiles);
    const int keys = listed_keys(sparse, item);
    item.keys = {0, keys, keys};
    return item;
  }
  __device__ float* partial_output() const { return nullptr; }
  __device__ void store_partial_lse(const LatentItem&, int, float) const {}
};

/// The parts of a plan. Grid: row tiles * parts, as that of LatentPlan.
struct ListedPlan {
  const AttendParams& params;
  const SparseParams& sparse;
  const PlanParams& plan;

  __device__ int part() const { return this_cta() / listed_row_tiles(params); }
  __device__ const int* record() const {
    return plan.parts + static_cast<i64>(part()) * kPlanRecord;
  }
  __device__ int first() const { return record()[0]; }
  __device__ int step() const { return 1; }
  __device__ int end() const { return record()[1] + 1; }
  __device__ LatentItem item(int at) const {
    const int index = this_cta() % listed_row_tiles(params);
    LatentItem item = listed_item(params, params.first_request + at, index);
    const GeneralPlanItem share = plan_item(params, plan, part(), at, listed_keys(sparse, item));
    item.is_whole = share.is_whole;
    item.split = share.split;
    item.keys = {share.run.begin, share.run.end, share.run.end};
    item.partial_row = share.first_row * params.num_heads + item.tile.first_row;
    return item;
  }
  __device__ float* partial_output() const { return plan.partial_output; }
  __device__ void store_partial_lse(const LatentItem& item, int row, float lse) const {
    plan.partial_lse[item.partial_row + row] = lse;
  }
};

/// The keys of an item, by lists. Why in two steps: the number is read a pair of tiles ahead, and
/// nothing waits for it until it is used.
struct ListedKeys {
  const AttendParams& params;
  const SparseParams& sparse;
  const int* slots;  // of the token

  __device__ ListedKeys(const AttendParams& of, const SparseParams& lists, const LatentItem& item)
      : params(of),
        sparse(lists),
        slots(lists.slots + token_of(item.tile, 0) * lists.slots_stride) {}
  __device__ int number(int key, int end) const { return key < end ? slots[key] : -1; }
  /// Of its entry, in elements of the cache; -1 where there is no key.
  __device__ i64 place(int number, int) const {
    if (number < 0 || number >= sparse.num_slots) return -1;
    const KvParams& kv = params.kv;
    return number / kv.block_size * kv.block_stride + number % kv.block_size * kv.token_stride_key;
  }
};
/// The same by the block table of the item's request.
struct PagedKeys {
  const AttendParams& params;
  const int* table;

  __device__ PagedKeys(const AttendParams& of, const SparseParams&, const LatentItem& item)
      : params(of), table(of.kv.block_table + item.tile.request * of.kv.block_table_stride) {}
  __device__ int number(int key, int end) const {
    return key < end ? table[key / params.kv.block_size] : -1;
  }
  __device__ i64 place(int number, int key) const {
    if (number < 0) return -1;
    const KvParams& kv = params.kv;
    return number * kv.block_stride + key % kv.block_size * kv.token_stride_key;
  }
};

}  // namespace attn
