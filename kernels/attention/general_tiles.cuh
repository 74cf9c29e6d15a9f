// Rows of queries, keys and values on their way from device memory to operands of the products in
// shared memory, whatever they are stored as. All 256 threads share out a tile by pieces of a row;
// loads are of as many elements as alignment allows, and conversion happens in registers.
#pragma once

#include "kernels/common/packed_codes.cuh"
#include "kernels/params_mla.h"
#include "kernels/ptx/codes.cuh"
#include "kernels/ptx/element_vector.cuh"

namespace attn {

/// Threads of a CTA of general.cuh: 8 warps.
constexpr int kGeneralThreads = 256;

/// Elements as kTo; codes times `scale` when kScaled, in f32 and rounded once.
template <Element kFrom, Element kTo, bool kScaled, int kCount>
__device__ __forceinline__ ElementVector<kTo, kCount> convert_vector(
    const ElementVector<kFrom, kCount>& from, float scale) {
  if constexpr (kFrom == kTo && !kScaled) {
    return from;
  } else if constexpr (size_of(kFrom) == 1 && size_of(kTo) == 2 && kCount % 4 == 0) {
    ElementVector<kTo, kCount> to;
#pragma unroll
    for (int i = 0; i < kCount / 4; ++i) {
      const Four16 numbers = decode_codes<kFrom, kTo, kScaled>(from.words[i], scale);
      to.words[2 * i] = numbers.low;
      to.words[2 * i + 1] = numbers.high;
    }
    return to;
  } else {
    float values[kCount];
    decode_vector(from, values);
    if constexpr (kScaled) {
#pragma unroll
      for (int i = 0; i < kCount; ++i) values[i] = __fmul_rn(values[i], scale);
    }
    return encode_vector<kTo>(values);
  }
}

/// kRows rows of kColumns elements into a tile; `offsets` [kRows] are in elements from `base`, rows
/// of a negative one become zeros and are not read.
template <Element kFrom, Element kTo, bool kScaled, int kRows, int kColumns, int kVector>
__device__ __forceinline__ void stage_rows(const void* base, const i64* offsets, float scale,
                                           unsigned char* tile, int pitch) {
  constexpr int kPieces = kColumns / kVector;
  static_assert(kPieces * kVector == kColumns);
#pragma unroll 2
  for (int index = threadIdx.x; index < kRows * kPieces; index += kGeneralThreads) {
    const int row = index / kPieces;
    const int column = index % kPieces * kVector;
    const i64 offset = offsets[row];
    ElementVector<kFrom, kVector> loaded{};
    if (offset >= 0) {
      loaded = load_vector<kFrom, kVector>(static_cast<const char*>(base) +
                                           (offset + column) * size_of(kFrom));
    }
    store_vector(tile + row * pitch + column * size_of(kTo),
                 convert_vector<kFrom, kTo, kScaled>(loaded, scale));
  }
}

/// The eight numbers of a word of codes into their place in a tile, exactly in 16 bits.
template <Element kTo, class Decode>
__device__ __forceinline__ void store_eight(u32 word, unsigned char* to, Decode decode) {
#pragma unroll
  for (int half = 0; half < 2; ++half) {
    float values[4];
#pragma unroll
    for (int i = 0; i < 4; ++i) values[i] = decode(word >> (half * 16 + i * 4) & 15u);
    store_vector(to + half * 4 * size_of(kTo), encode_vector<kTo>(values));
  }
}

/// kRows rows of codes of 4 bits as numbers less the zero point of their row, which lies in
/// `scales` (semantics §5.6); the scales are applied to scores and weights. `offsets` are bytes,
/// rows of a negative one become zeros.
template <Element kTo, int kRows, int kColumns>
__device__ __forceinline__ void stage_int4_rows(const void* base, const i64* offsets,
                                                const float* scales, unsigned char* tile,
                                                int pitch) {
  constexpr int kWords = kColumns / 8;
#pragma unroll 2
  for (int index = threadIdx.x; index < kRows * kWords; index += kGeneralThreads) {
    const int row = index / kWords;
    const int word = index % kWords;
    const i64 offset = offsets[row];
    const int zero_point = offset < 0 ? 0 : int4_zero_point(scales[row]);
    const u32 codes =
        offset < 0 ? 0u
                   : reinterpret_cast<const u32*>(static_cast<const char*>(base) + offset)[word];
    store_eight<kTo>(codes, tile + row * pitch + word * 8 * size_of(kTo), [&](u32 code) {
      return static_cast<float>(static_cast<int>(code) - zero_point);
    });
  }
}

/// kRows rows of e2m1 codes times the scale of their block (semantics §5.7). `scale_offsets` are
/// bytes from `scales` to where the scales of a row begin, or, of values, those of its four slots.
template <Element kTo, int kRows, int kColumns, bool kValues>
__device__ __forceinline__ void stage_nvfp4_rows(const void* base, const i64* offsets,
                                                 const u8* scales, const i64* scale_offsets,
                                                 i64 slot_stride, unsigned char* tile, int pitch) {
  constexpr int kWords = kColumns / 8;
#pragma unroll 2
  for (int index = threadIdx.x; index < kRows * kWords; index += kGeneralThreads) {
    const int row = index / kWords;
    const int word = index % kWords;
    const i64 offset = offsets[row];
    u32 codes = 0;
    float scale = 0.0f;
    if (offset >= 0) {
      codes = reinterpret_cast<const u32*>(static_cast<const char*>(base) + offset)[word];
      const int block = word / 2;
      i64 at = scale_offsets[row] + block;
      if constexpr (kValues) {
        const SwizzledScale place = swizzled_value_scale(0, block, kColumns / kKvScaleBlock);
        at = scale_offsets[row] + place.slot * slot_stride + place.block;
      }
      scale = e4m3_to_float(scales[at]);
    }
    store_eight<kTo>(codes, tile + row * pitch + word * 8 * size_of(kTo),
                     [&](u32 code) { return e2m1_to_float(static_cast<u8>(code)) * scale; });
  }
}

/// Entries of "fp8_ds_mla" as bf16: code * tile scale rounded once, then k_pe. Offsets are bytes.
template <int kRows>
__device__ __forceinline__ void stage_ds_mla_rows(const void* base, const i64* offsets,
                                                  unsigned char* tile, int pitch) {
  constexpr int kCodeWords = kDsMlaLatent / 4;
  constexpr int kPieces = kCodeWords + kDsMlaRope / 2;
#pragma unroll 2
  for (int index = threadIdx.x; index < kRows * kPieces; index += kGeneralThreads) {
    const int row = index / kPieces;
    const int piece = index % kPieces;
    const i64 offset = offsets[row];
    const char* const entry = static_cast<const char*>(base) + (offset < 0 ? 0 : offset);
    unsigned char* const to = tile + row * pitch;
    if (piece < kCodeWords) {
      Four16 numbers{0, 0};
      if (offset >= 0) {
        const auto* scales = reinterpret_cast<const float*>(entry + kDsMlaLatent);
        numbers = decode_codes<Element::kE4M3, Element::kBF16, true>(
            reinterpret_cast<const u32*>(entry)[piece], scales[piece / (kDsMlaTile / 4)]);
      }
      *reinterpret_cast<uint2*>(to + piece * 8) = make_uint2(numbers.low, numbers.high);
    } else {
      // The 16 bytes of the tile scales lie between the codes and k_pe.
      *reinterpret_cast<u32*>(to + kDsMlaLatent * 2 + (piece - kCodeWords) * 4) =
          offset < 0 ? 0u : reinterpret_cast<const u32*>(entry)[piece + 4];
    }
  }
}

/// Entries of "fp8_model1_mla" as bf16: code * tile scale rounded once, then k_pe. `offsets` are
/// bytes from `base` to the data of an entry, `scale_offsets` to its scales.
template <int kRows>
__device__ __forceinline__ void stage_model1_rows(const void* base, const i64* offsets,
                                                  const i64* scale_offsets, unsigned char* tile,
                                                  int pitch) {
  constexpr int kCodeWords = kModel1Latent / 4;
  constexpr int kPieces = kCodeWords + kModel1Rope / 2;
#pragma unroll 2
  for (int index = threadIdx.x; index < kRows * kPieces; index += kGeneralThreads) {
    const int row = index / kPieces;
    const int piece = index % kPieces;
    const i64 offset = offsets[row];
    const char* const entry = static_cast<const char*>(base) + (offset < 0 ? 0 : offset);
    unsigned char* const to = tile + row * pitch;
    const u32 word = offset < 0 ? 0u : reinterpret_cast<const u32*>(entry)[piece];
    if (piece < kCodeWords) {
      Four16 numbers{0, 0};
      if (offset >= 0) {
        const auto* scales = static_cast<const u8*>(base) + scale_offsets[row];
        numbers = decode_codes<Element::kE4M3, Element::kBF16, true>(
            word, ue8m0_to_float(scales[piece / (kModel1Tile / 4)]));
      }
      *reinterpret_cast<uint2*>(to + piece * 8) = make_uint2(numbers.low, numbers.high);
    } else {
      *reinterpret_cast<u32*>(to + kModel1Latent * 2 + (piece - kCodeWords) * 4) = word;
    }
  }
}

/// Bytes [first, pitch) of every row become 0: columns that add nothing to S.
__device__ __forceinline__ void clear_columns(unsigned char* tile, int rows, int first, int pitch) {
  const int width = pitch - first;
  for (int index = threadIdx.x; index < rows * width; index += kGeneralThreads) {
    tile[index / width * pitch + first + index % width] = 0;
  }
}

/// Whether this thread's share of a tile of values holds NaN or infinity, whose exponent field is
/// all ones. The caller combines the threads' answers at its barrier.
template <Element kElement, int kColumns>
__device__ __forceinline__ bool has_nonfinite(const unsigned char* tile, int rows, int pitch) {
  constexpr u32 kExponent = kElement == Element::kF32    ? 0x7F800000u
                            : kElement == Element::kBF16 ? 0x7F80u
                                                         : 0x7C00u;
  bool found = false;
  for (int index = threadIdx.x; index < rows * kColumns; index += kGeneralThreads) {
    const unsigned char* at =
        tile + index / kColumns * pitch + index % kColumns * size_of(kElement);
    u32 bits = 0;
    if constexpr (kElement == Element::kF32) {
      bits = *reinterpret_cast<const u32*>(at);
    } else {
      bits = *reinterpret_cast<const u16*>(at);
    }
    found |= (bits & kExponent) == kExponent;
  }
  return found;
}

}  // namespace attn
