// What saving decodes of int8 scores do before they attend (decode.cuh): new keys, their scales and
// new values go to the cache, by the CTA of their KV head whose run of keys they lie in.
#pragma once

#include "kernels/attention/kv_rows.cuh"
#include "kernels/attention/rows.cuh"
#include "kernels/params_int8.h"

namespace attn {

/// Token i of a request goes to position seq_len - query_len + i (semantics §11.6), 16 bytes a
/// thread and a time: those in `run`, by the CTA that attends to it, before it reads any. What lies
/// beside them in the cache is other CTAs'. Only where a request's rows are one tile: of several,
/// one would read what another has yet to store.
template <class Config, int kThreads>
__device__ __forceinline__ void save_new(const Int8CacheWriteParams& save, const RowTile& tile,
                                         KeyInterval run, int thread) {
  constexpr int kValueBytes = size_of(kStoredValue<Config>);
  constexpr int kKeyPieces = Config::kHeadSize / 16;
  constexpr int kValuePieces = Config::kVHeadSize * kValueBytes / 16;
  constexpr int kPieces = kKeyPieces + kValuePieces + 1;
  const int first = larger(larger(tile.context_len, 0), run.begin);
  const int count = smaller(tile.seq_len, run.end) - first;
  const int* const table = save.block_table + tile.request * save.block_table_stride;
  for (int i = thread; i < count * kPieces; i += kThreads) {
    const int position = first + i / kPieces;
    const int piece = i % kPieces;
    const i64 token = tile.first_token + position - tile.context_len;
    const i64 block = table[position / larger(Config::kBlockSize, 1)];
    const i64 slot = position % larger(Config::kBlockSize, 1);
    const i64 cell =
        block * save.block_stride + slot * save.slot_stride + tile.kv_head * save.head_stride;
    if (piece < kKeyPieces) {
      const i64 from = token * save.key_token_stride + tile.kv_head * save.key_head_stride;
      *reinterpret_cast<uint4*>(save.key_cache + cell + piece * 16) =
          *reinterpret_cast<const uint4*>(save.key + from + piece * 16);
    } else if (piece < kKeyPieces + kValuePieces) {
      const i64 from = token * save.value_token_stride + tile.kv_head * save.value_head_stride;
      const int byte = (piece - kKeyPieces) * 16;
      *reinterpret_cast<uint4*>(static_cast<unsigned char*>(save.value_cache) + cell * kValueBytes +
                                byte) =
          *reinterpret_cast<const uint4*>(static_cast<const unsigned char*>(save.value) +
                                          from * kValueBytes + byte);
    } else {
      save.key_scale_cache[block * save.scale_block_stride + slot * save.scale_slot_stride +
                           tile.kv_head * save.scale_head_stride] =
          save.key_scale[token * save.key_scale_token_stride +
                         tile.kv_head * save.key_scale_head_stride];
    }
  }
}

}  // namespace attn
