// What the CTAs of gathered.cuh work on where every token has a list of keys: items as those of
// latent_parts.cuh, but rows of one token only, since its list is theirs; and how the place of a
// key is looked up, in a list or in the block table of a request.
#pragma once

#include "kernels/attention/latent/gathered_layout.cuh"
#include "kernels/attention/latent/latent_parts.cuh"

namespace attn {

/// From a block of the cache to the next, in entries; strides are below 2^31 (hopper_gathered.cpp).
__device__ __forceinline__ int entries_of_block(const KvParams& kv) {
  return static_cast<int>(kv.block_stride) / static_cast<int>(kv.token_stride_key);
}

/// Rows of one token, against the keys of its list.
struct ListedRows {
  const AttendParams& params;
  const SparseParams& sparse;

  /// Those of the heads of a token.
  __device__ __forceinline__ int head_tiles() const {
    return (hidden(params.num_heads) + kLatentRows - 1) / kLatentRows;
  }
  /// Of the longest query: those of each of its tokens.
  __device__ __forceinline__ int num_tiles() const {
    return hidden(params.max_query_len) * head_tiles();
  }
  __device__ __forceinline__ LatentItem item(int request, int index) const {
    const int tiles = head_tiles();
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
  __device__ __forceinline__ int num_keys(const LatentItem& item) const {
    if (item.tile.num_rows <= 0) return 0;
    if (sparse.topk_length == nullptr) return sparse.topk;
    return larger(0, smaller(sparse.topk, sparse.topk_length[token_of(item.tile, 0)]));
  }
  /// All rows see all of them.
  __device__ __forceinline__ void see(LatentItem& item, KeyInterval run) const {
    item.keys = {run.begin, run.end, run.end};
  }
};
using ListedWhole = WholeItems<ListedRows>;
using ListedPlan = PlanItems<ListedRows>;

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
  /// Of its entry, counted in entries; -1 where there is no key.
  __device__ int place(int number, int) const {
    if (number < 0 || number >= sparse.num_slots) return -1;
    const KvParams& kv = params.kv;
    if (kv.block_stride == kv.block_size * kv.token_stride_key) return number;
    return number / kv.block_size * entries_of_block(kv) + number % kv.block_size;
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
  __device__ int place(int number, int key) const {
    if (number < 0) return -1;
    const KvParams& kv = params.kv;
    const int slot = key % kv.block_size;
    if (kv.block_stride == kv.block_size * kv.token_stride_key)
      return number * kv.block_size + slot;
    return number * entries_of_block(kv) + slot;
  }
};

}  // namespace attn
