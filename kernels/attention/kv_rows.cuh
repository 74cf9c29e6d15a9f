// Where the keys and values of a request lie, and their copies into tiles of shared memory. Shared
// by the prefill and decode kernels. A paged cache is addressed by runs of kPageGrain keys, which
// one page table entry covers whatever the block size; ragged keys are one run.
#pragma once

#include "kernels/attention/code_operands.cuh"
#include "kernels/ptx/cp_async.cuh"
#include "kernels/ptx/element_vector.cuh"

namespace attn {

/// Keys that are copied by one page table entry: block sizes are multiples of 16, so that a run of
/// 16 from a multiple of 16 on never straddles two pages.
constexpr int kPageGrain = 16;

/// The element of the values beside int8 keys and queries, whose keys have a scale for each slot
/// (semantics §11.4); kF32 for other problems, whose Config says nothing of it.
template <class Config>
ATTN_FN constexpr Element int8_value_of() {
  if constexpr (requires { Config::kInt8Value; }) {
    return Config::kInt8Value;
  } else {
    return Element::kF32;
  }
}
template <class Config>
constexpr bool kInt8Scores = int8_value_of<Config>() != Element::kF32;
/// As values are stored.
template <class Config>
constexpr Element kStoredValue = kInt8Scores<Config> ? int8_value_of<Config>() : Config::kKeyValue;

/// One of K and V of one request and KV head.
struct Side {
  const unsigned char* base;  // of token 0 when ragged; of block 0, slot 0 when paged
  i64 block_stride;           // bytes
  i64 token_stride;           // bytes
};

/// The side of a request and KV head. 64-bit offsets are folded into `base` once, here.
template <class Config, Element kElement>
__device__ __forceinline__ Side side_of(const AttendParams& params, const RowTile& tile,
                                        const void* data, i64 token_stride, i64 head_stride) {
  constexpr int kBytes = size_of(kElement);
  i64 first = tile.kv_head * head_stride;
  if constexpr (Config::kBlockSize == 0) {
    first += params.kv.kv_start_loc[tile.request] * token_stride;
  }
  return {static_cast<const unsigned char*>(data) + first * kBytes, params.kv.block_stride * kBytes,
          token_stride * kBytes};
}
template <class Config>
__device__ __forceinline__ Side key_side(const AttendParams& params, const RowTile& tile) {
  return side_of<Config, Config::kKeyValue>(params, tile, params.kv.key, params.kv.token_stride_key,
                                            params.kv.head_stride_key);
}
template <class Config>
__device__ __forceinline__ Side value_side(const AttendParams& params, const RowTile& tile) {
  return side_of<Config, kStoredValue<Config>>(
      params, tile, params.kv.value, params.kv.token_stride_value, params.kv.head_stride_value);
}

/// Bytes from Side::base to a key; `block` is its page table entry, ignored when ragged.
template <class Config>
__device__ __forceinline__ i64 offset_of_key(const Side& side, int block, int key) {
  if constexpr (Config::kBlockSize == 0) {
    return key * side.token_stride;
  } else {
    constexpr auto kSize = static_cast<unsigned>(Config::kBlockSize);
    return block * side.block_stride + static_cast<unsigned>(key) % kSize * side.token_stride;
  }
}

/// Starts the copy of kRows rows of kRowBytes each, token_stride apart, into a tile; rows from
/// `valid_rows` on become zeros and are not read. Why zeros and not what was there before: keys
/// past the end get weight 0, and 0 times a stale NaN would be NaN. A thread copies kCopyBytes at a
/// time, neighbouring threads neighbouring pieces of a row. The caller closes the group.
template <int kRows, int kRowBytes, int kCopyBytes, int kPitch, int kThreads>
__device__ __forceinline__ void copy_run(const unsigned char* first_row, i64 token_stride,
                                         int valid_rows, u32 to, int thread) {
  constexpr int kPieces = kRowBytes / kCopyBytes;
  static_assert(kPieces * kCopyBytes == kRowBytes);
  constexpr int kStep = kThreads / kPieces;  // rows that all threads together copy at once
  if constexpr (kThreads % kPieces == 0 && kRows % (kStep > 0 ? kStep : 1) == 0) {
    // Why apart from the loop below: a thread keeps its column, so its addresses only advance.
    const int row = thread / kPieces;
    const int column = thread % kPieces * kCopyBytes;
    const unsigned char* from = first_row + row * token_stride + column;
    // Of rows a multiple of 8 apart tile_offset() has the same columns.
    const auto at = [&](int i) {
      if constexpr (kPitch % kLineBytes != 0 || kStep % 8 == 0) {
        return to + tile_offset<kPitch>(row, column) + i * kStep * kPitch;
      } else {
        return to + tile_offset<kPitch>(row + i * kStep, column);
      }
    };
    const i64 advance = kStep * token_stride;
    if (valid_rows >= kRows) {
#pragma unroll
      for (int i = 0; i < kRows / kStep; ++i) {
        copy_async<kCopyBytes>(at(i), from);
        from += advance;
      }
    } else {
#pragma unroll 1
      for (int i = 0; i < kRows / kStep; ++i) {
        const bool valid = row + i * kStep < valid_rows;
        copy_async<kCopyBytes>(at(i), valid ? from : first_row, valid);
        from += advance;
      }
    }
  } else {
    constexpr int kTotal = kRows * kPieces;
#pragma unroll 4
    for (int i = 0; i < (kTotal + kThreads - 1) / kThreads; ++i) {
      const int index = i * kThreads + thread;
      if (kTotal % kThreads != 0 && index >= kTotal) break;
      const int row = index / kPieces;
      const int column = index % kPieces * kCopyBytes;
      const bool valid = row < valid_rows;
      const unsigned char* from = first_row + (valid ? row * token_stride + column : 0);
      copy_async<kCopyBytes>(to + tile_offset<kPitch>(row, column), from, valid);
    }
  }
}

/// What elements a kernel computes with, given how queries, keys and values are stored. Codes with
/// kRoundDequantized are scaled and rounded to the query's element before the product, since that
/// is what the definition says (semantics §4.4 mode 1); other codes enter the products unscaled,
/// and their scales are applied to scores and outputs.
template <class Config>
struct Formats {
  static constexpr bool kCodes = size_of(Config::kKeyValue) == 1;
  static constexpr bool kValueCodes = size_of(kStoredValue<Config>) == 1;
  static constexpr bool kInt8 = kInt8Scores<Config>;
  static constexpr bool kScaled = kCodes && !kInt8 && Config::kRoundDequantized;
  static constexpr bool kTokenHeadScales = kCodes && !kInt8 && Config::kTokenHeadScales;
  /// Scales of keys lie beside their codes, and with kTokenHeadScales those of values too.
  static constexpr bool kKeyScales = kTokenHeadScales || kInt8;
  /// Why f16 for plain codes: they are exact in it, and the conversion is one instruction for two
  /// of them instead of four.
  static constexpr Element kScore = kCodes && !kScaled && !kInt8 ? Element::kF16 : Config::kQuery;
  /// The same: weights are at most 256, and scale_weights() keeps them small.
  static constexpr Element kValue = !kInt8        ? kScore
                                    : kValueCodes ? Element::kF16
                                                  : kStoredValue<Config>;
};

/// Per-tensor factor of the keys: part of the decoded numbers when kScaled, otherwise of the score.
/// value_scale(): the same for values and output.
template <class Config>
__device__ __forceinline__ float key_scale(const AttendParams& params, int kv_head) {
  if (!Formats<Config>::kCodes || kInt8Scores<Config> || params.kv.k_scale == nullptr) return 1.0f;
  return params.kv.k_scale[kv_head];
}
template <class Config>
__device__ __forceinline__ float value_scale(const AttendParams& params, int kv_head) {
  if (!Formats<Config>::kCodes || kInt8Scores<Config> || params.kv.v_scale == nullptr) return 1.0f;
  return params.kv.v_scale[kv_head];
}

/// Starts the copy of the per-token-head scales of keys [first_key, first_key + kRows): first those
/// of the keys, then those of the values; 0 past `end`. Threads 0 to 2 kRows - 1 copy one each;
/// `blocks[i]` is the page table entry of keys first_key + 16 i and on.
template <class Config, int kRows>
__device__ __forceinline__ void copy_scales(const AttendParams& params, int kv_head,
                                            const int* blocks, int first_key, int end, u32 to,
                                            int thread) {
  if (thread >= (kInt8Scores<Config> ? 1 : 2) * kRows) return;  // int8 values have none
  const KvParams& kv = params.kv;
  const int row = thread % kRows;
  const bool valid = first_key + row < end;
  const float* from = thread < kRows ? kv.key_scales : kv.value_scales;
  if (valid) {
    const int slot = (first_key + row) % larger(Config::kBlockSize, 1);
    from += blocks[row / kPageGrain] * kv.scale_block_stride + slot * kv.scale_slot_stride +
            kv_head * kv.scale_head_stride;
  }
  copy_async<4>(to + thread * 4, from, valid);
}

/// Columns from kColumns up to the next multiple of 16, the step of the products, become 0, so that
/// they add nothing to S. Copies never write them, so this is done once for all tiles of a place.
template <int kColumns, int kElementBytes, int kPitch>
__device__ __forceinline__ void clear_padding(unsigned char* tile, int rows, int thread,
                                              int threads) {
  if constexpr (kColumns % 16 != 0) {
    static_assert(kColumns % 16 == 8);
    for (int i = thread; i < rows * kElementBytes; i += threads) {
      auto* row = tile + i / kElementBytes * kPitch + kColumns * kElementBytes;
      *reinterpret_cast<uint2*>(row + i % kElementBytes * 8) = make_uint2(0, 0);
    }
  }
}

/// This thread's pieces of a tile of codes become 16-bit numbers in the tile of the products. They
/// are not the pieces that the thread copied: the caller needs a barrier before and after.
template <class Config, int kRows, int kColumns, int kCodePitch, int kPitch, int kThreads,
          Element kTo>
__device__ __forceinline__ void decode_rows(const unsigned char* codes, float scale,
                                            unsigned char* to, int thread) {
  static_assert(kPitch % kLineBytes != 0, "columns of the 16-bit tile lie in their order");
  constexpr int kPieces = kColumns / Config::kCopyBytes;
  constexpr int kTotal = kRows * kPieces;
#pragma unroll 1
  for (int index = thread; index < kTotal; index += kThreads) {
    const int row = index / kPieces;
    const int column = index % kPieces * Config::kCopyBytes;
#pragma unroll
    for (int i = 0; i < Config::kCopyBytes; i += 4) {
      const u32 word =
          *reinterpret_cast<const u32*>(codes + tile_offset<kCodePitch>(row, column) + i);
      const Four16 numbers =
          decode_codes<Config::kKeyValue, kTo, Formats<Config>::kScaled>(word, scale);
      *reinterpret_cast<uint2*>(to + row * kPitch + (column + i) * 2) =
          make_uint2(numbers.low, numbers.high);
    }
  }
}

}  // namespace attn
