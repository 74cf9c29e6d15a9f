// A view of device memory that the copy engine of SM 9.0 and newer (TMA) moves in boxes: what a
// launcher says about it, and the form in which the driver hands it to a kernel.
#pragma once

#include <array>
#include <compare>
#include <cstddef>
#include <cstdint>
#include <string>

#include "core/numbers/dtype.h"

namespace attnbench {

class Runtime;

// The numbers of the enumerations and of tensor_data_type() are the driver's:
// gpu/toolkit/cuda_runtime.cpp holds them against its header.

/// How the 16-byte pieces of a box are permuted in shared memory so that rows and columns are read
/// without bank conflicts: within spans of so many bytes, by the row of 128 bytes that they are in.
enum class TensorSwizzle { kNone, k32Bytes, k64Bytes, k128Bytes };

/// What is fetched into the L2 cache at least when a part of it is read.
enum class TensorPromotion { kNone, k64Bytes, k128Bytes, k256Bytes };

/// As what the elements are moved, a CUtensorMapDataType. 8-bit numbers are bytes: what is filled
/// in past the end is zero in all of them.
constexpr int tensor_data_type(Dtype dtype) {
  switch (dtype) {
    case Dtype::kE4M3:
    case Dtype::kE5M2:
    case Dtype::kI8:
    case Dtype::kU8:
      return 0;
    case Dtype::kI32:
      return 3;
    case Dtype::kI64:
      return 5;
    case Dtype::kF16:
      return 6;
    case Dtype::kF32:
      return 7;
    case Dtype::kF64:
      return 8;
    case Dtype::kBF16:
      return 9;
  }
  return 0;
}

/// Plain values, so that launchers are tested without a GPU. Dimension 0 is the one whose elements
/// are neighbours in memory.
struct TensorMap {
  static constexpr int kMaxRank = 5;
  template <typename T>
  using PerDimension = std::array<T, kMaxRank>;

  const void* data = nullptr;  // device memory, on a multiple of 16 bytes
  Dtype dtype = Dtype::kBF16;
  int rank = 0;                          // 1 to kMaxRank; what follows has so many entries
  PerDimension<std::int64_t> extents{};  // elements; a box past them reads zeros, writes nothing
  /// Bytes from an index of a dimension to the next, multiples of 16. That of dimension 0 is the
  /// element and not looked at.
  PerDimension<std::int64_t> strides{};
  PerDimension<int> box{};  // elements of a box, up to 256 a dimension
  TensorSwizzle swizzle = TensorSwizzle::kNone;
  TensorPromotion promotion = TensorPromotion::k128Bytes;

  auto operator<=>(const TensorMap&) const = default;

  /// Shared memory that a box takes, and what its barrier counts.
  std::int64_t box_bytes() const;
};

/// Why the copy engine cannot take it ("the box has 257 elements in dimension 1, at most 256 are
/// possible"); empty where it can. Alignments, ranges and sizes only: no driver is needed.
std::string tensor_map_misfit(const TensorMap& map);

/// The same in the driver's words: a kernel parameter of the type attn::TensorMap.
struct alignas(128) EncodedTensorMap {
  std::array<std::byte, 128> bytes{};
};

/// Errors: kInternal with tensor_map_misfit()'s reason; kCuda where the driver has no
/// cuTensorMapEncodeTiled or refuses the map.
EncodedTensorMap encode_tensor_map(Runtime& runtime, const TensorMap& map);

}  // namespace attnbench
