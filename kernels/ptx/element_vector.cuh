// Some contiguous elements in registers: loaded and stored by up to 16 bytes an instruction, read
// and written as f32. Every kernel that moves or converts tensors is written over these: the
// launcher picks the widest vector that the sizes, strides and addresses of a call allow
// (widest_vector() on the host), and one kernel text serves all elements.
#pragma once

#include "kernels/common/numeric.cuh"
#include "kernels/params.h"
#include "kernels/ptx/codes.cuh"

namespace attn {

/// Bytes of an element.
ATTN_FN constexpr int size_of(Element element) {
  switch (element) {
    case Element::kF64:
    case Element::kI64:
      return 8;
    case Element::kF32:
    case Element::kI32:
      return 4;
    case Element::kF16:
    case Element::kBF16:
      return 2;
    case Element::kE4M3:
    case Element::kE5M2:
    case Element::kI8:
    case Element::kU8:
      return 1;
  }
  return 0;
}

/// kCount elements; element i lies in bits of words[i * size / 4]. Below 4 bytes the word is padded
/// with zeros.
template <Element kElement, int kCount>
struct ElementVector {
  static constexpr int kSize = size_of(kElement);
  static constexpr int kBytes = kCount * kSize;
  static constexpr int kNumWords = kBytes < 4 ? 1 : kBytes / 4;
  static_assert(kBytes < 4 || kBytes % 4 == 0);
  u32 words[kNumWords];
};

/// `source` is aligned to the size of the vector, or to 16 bytes where that is more.
template <Element kElement, int kCount>
__device__ __forceinline__ ElementVector<kElement, kCount> load_vector(const void* source) {
  using Vector = ElementVector<kElement, kCount>;
  Vector vector;
  if constexpr (Vector::kBytes == 1) {
    vector.words[0] = *static_cast<const u8*>(source);
  } else if constexpr (Vector::kBytes == 2) {
    vector.words[0] = *static_cast<const u16*>(source);
  } else if constexpr (Vector::kBytes == 4) {
    vector.words[0] = *static_cast<const u32*>(source);
  } else if constexpr (Vector::kBytes == 8) {
    const uint2 part = *static_cast<const uint2*>(source);
    vector.words[0] = part.x;
    vector.words[1] = part.y;
  } else {
    static_assert(Vector::kBytes % 16 == 0);
#pragma unroll
    for (int i = 0; i < Vector::kBytes / 16; ++i) {
      const uint4 part = static_cast<const uint4*>(source)[i];
      vector.words[4 * i] = part.x;
      vector.words[4 * i + 1] = part.y;
      vector.words[4 * i + 2] = part.z;
      vector.words[4 * i + 3] = part.w;
    }
  }
  return vector;
}

/// `destination` is aligned as the source of load_vector() is.
template <Element kElement, int kCount>
__device__ __forceinline__ void store_vector(void* destination,
                                             const ElementVector<kElement, kCount>& vector) {
  using Vector = ElementVector<kElement, kCount>;
  if constexpr (Vector::kBytes == 1) {
    *static_cast<u8*>(destination) = static_cast<u8>(vector.words[0]);
  } else if constexpr (Vector::kBytes == 2) {
    *static_cast<u16*>(destination) = static_cast<u16>(vector.words[0]);
  } else if constexpr (Vector::kBytes == 4) {
    *static_cast<u32*>(destination) = vector.words[0];
  } else if constexpr (Vector::kBytes == 8) {
    *static_cast<uint2*>(destination) = make_uint2(vector.words[0], vector.words[1]);
  } else {
    static_assert(Vector::kBytes % 16 == 0);
#pragma unroll
    for (int i = 0; i < Vector::kBytes / 16; ++i) {
      static_cast<uint4*>(destination)[i] =
          make_uint4(vector.words[4 * i], vector.words[4 * i + 1], vector.words[4 * i + 2],
                     vector.words[4 * i + 3]);
    }
  }
}

/// kCount elements by loads of kLoad elements, for sources that are not aligned to the vector:
/// whole 16 bytes (or the whole vector), or single elements of two or four bytes.
template <Element kElement, int kCount, int kLoad>
__device__ __forceinline__ ElementVector<kElement, kCount> load_parts(const void* source) {
  using Vector = ElementVector<kElement, kCount>;
  if constexpr (kLoad * size_of(kElement) >= (Vector::kBytes < 16 ? Vector::kBytes : 16)) {
    return load_vector<kElement, kCount>(source);
  } else {
    static_assert(kLoad == 1 && size_of(kElement) >= 2);
    const u16* const halves = static_cast<const u16*>(source);
    Vector vector;
#pragma unroll
    for (int i = 0; i < Vector::kNumWords; ++i) {
      if constexpr (size_of(kElement) == 4) {
        vector.words[i] = static_cast<const u32*>(source)[i];
      } else {
        vector.words[i] = halves[2 * i] | static_cast<u32>(halves[2 * i + 1]) << 16;
      }
    }
    return vector;
  }
}

/// Stores the vector by pieces of kStoreBytes (1, 2, 4, 8 or 16), or at once where it is smaller
/// than that: for destinations that are only aligned to kStoreBytes.
template <int kStoreBytes, Element kElement, int kCount>
__device__ __forceinline__ void store_parts(void* destination,
                                            const ElementVector<kElement, kCount>& vector) {
  constexpr int kBytes = ElementVector<kElement, kCount>::kBytes;
  constexpr int kStep = kStoreBytes < kBytes ? kStoreBytes : kBytes;
  static_assert(kBytes % kStep == 0);
#pragma unroll
  for (int at = 0; at < kBytes; at += kStep) {
    ElementVector<Element::kU8, kStep> part;
#pragma unroll
    for (int i = 0; i < part.kNumWords; ++i) {
      part.words[i] = vector.words[at / 4 + i] >> (at % 4 * 8);
    }
    store_vector(static_cast<u8*>(destination) + at, part);
  }
}

/// The value of the element whose bits are the low ones of `bits`.
template <Element kElement>
__device__ __forceinline__ float decode_element(u32 bits) {
  if constexpr (kElement == Element::kF32) {
    return float_from_bits(bits);
  } else if constexpr (kElement == Element::kBF16) {
    return float_from_bits(bits << 16);
  } else if constexpr (kElement == Element::kF16) {
#if defined(__CUDA_ARCH__)
    float value;
    asm("cvt.f32.f16 %0, %1;" : "=f"(value) : "h"(static_cast<u16>(bits)));
    return value;
#else
    return f16_to_float(static_cast<u16>(bits));
#endif
  } else if constexpr (kElement == Element::kE4M3) {
    return e4m3_to_float(static_cast<u8>(bits));
  } else if constexpr (kElement == Element::kE5M2) {
    // The upper half of a f16.
    return decode_element<Element::kF16>((bits & 0xFFu) << 8);
  } else {
    static_assert(kElement == Element::kI8);
    return static_cast<float>(static_cast<signed char>(bits));
  }
}

/// Two values rounded to nearest even (fp8: saturating), `low` in the low bits.
template <Element kElement>
__device__ __forceinline__ u32 encode_pair(float low, float high) {
  if constexpr (kElement == Element::kBF16) {
    u32 pair;
    asm("cvt.rn.bf16x2.f32 %0, %1, %2;" : "=r"(pair) : "f"(high), "f"(low));
    return pair;
  } else if constexpr (kElement == Element::kF16) {
    u32 pair;
    asm("cvt.rn.f16x2.f32 %0, %1, %2;" : "=r"(pair) : "f"(high), "f"(low));
    return pair;
  } else if constexpr (kElement == Element::kE4M3) {
#if __CUDA_ARCH__ >= 890
    u16 pair;
    asm("cvt.rn.satfinite.e4m3x2.f32 %0, %1, %2;" : "=h"(pair) : "f"(high), "f"(low));
    return pair;
#else
    return e4m3_from_float(low) | static_cast<u32>(e4m3_from_float(high)) << 8;
#endif
  } else {
    static_assert(kElement == Element::kE5M2);
#if __CUDA_ARCH__ >= 890
    u16 pair;
    asm("cvt.rn.satfinite.e5m2x2.f32 %0, %1, %2;" : "=h"(pair) : "f"(high), "f"(low));
    return pair;
#else
    return e5m2_from_float(low) | static_cast<u32>(e5m2_from_float(high)) << 8;
#endif
  }
}

/// All elements as f32, exactly. Codes are not scaled.
template <Element kElement, int kCount>
__device__ __forceinline__ void decode_vector(const ElementVector<kElement, kCount>& vector,
                                              float (&values)[kCount]) {
  constexpr int kSize = size_of(kElement);
#if __CUDA_ARCH__ >= 890
  if constexpr (kElement == Element::kE4M3 && kCount % 2 == 0) {
    // Two at a time by way of f16, which holds every code.
#pragma unroll
    for (int i = 0; i < kCount; i += 2) {
      const u32 pair = e4m3_pair_to_f16(static_cast<u16>(vector.words[i / 4] >> (8 * (i % 4))));
      values[i] = f16_low_to_float(pair);
      values[i + 1] = f16_high_to_float(pair);
    }
    return;
  }
#endif
#pragma unroll
  for (int i = 0; i < kCount; ++i) {
    values[i] = decode_element<kElement>(vector.words[i * kSize / 4] >> (8 * (i * kSize % 4)));
  }
}

/// Values rounded to nearest even to f32, f16, bf16, e4m3 or e5m2; fp8 saturates, f16 overflows to
/// infinity. The bits are those of numeric.cuh, save the payload of NaN.
template <Element kElement, int kCount>
__device__ __forceinline__ ElementVector<kElement, kCount> encode_vector(
    const float (&values)[kCount]) {
  ElementVector<kElement, kCount> vector;
  if constexpr (kElement == Element::kF32) {
#pragma unroll
    for (int i = 0; i < kCount; ++i) vector.words[i] = float_bits(values[i]);
  } else if constexpr (kCount == 1) {
    vector.words[0] = encode_pair<kElement>(values[0], 0.0f);
  } else if constexpr (size_of(kElement) == 2) {
#pragma unroll
    for (int i = 0; i < kCount; i += 2) {
      vector.words[i / 2] = encode_pair<kElement>(values[i], values[i + 1]);
    }
  } else if constexpr (kCount == 2) {
    vector.words[0] = encode_pair<kElement>(values[0], values[1]);
  } else {
#pragma unroll
    for (int i = 0; i < kCount; i += 4) {
      vector.words[i / 4] = encode_pair<kElement>(values[i], values[i + 1]) |
                            encode_pair<kElement>(values[i + 2], values[i + 3]) << 16;
    }
  }
  return vector;
}

}  // namespace attn
