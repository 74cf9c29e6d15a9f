#include "gpu/tensor_map.h"

#include <fmt/format.h>

#include <cstdint>

#include "core/error.h"
#include "gpu/runtime.h"

namespace attnbench {
namespace {

/// cuTensorMapEncodeTiled. Why by hand: it is found when the program runs, and the toolkit's
/// headers may not be there when it is built.
using Encode = int (*)(void* map, int data_type, std::uint32_t rank, void* address,
                       const std::uint64_t* extents, const std::uint64_t* strides,
                       const std::uint32_t* box, const std::uint32_t* element_strides,
                       int interleave, int swizzle, int promotion, int out_of_bounds_fill);

constexpr const char* kEncode = "cuTensorMapEncodeTiled";
constexpr std::int64_t kAlignment = 16;
constexpr int kMostBoxElements = 256;

template <typename T>
T entry(const TensorMap::PerDimension<T>& values, int dimension) {
  return values[static_cast<std::size_t>(dimension)];
}

/// Bytes of a swizzled span; 0 without.
std::int64_t span_bytes(TensorSwizzle swizzle) {
  switch (swizzle) {
    case TensorSwizzle::kNone:
      return 0;
    case TensorSwizzle::k32Bytes:
      return 32;
    case TensorSwizzle::k64Bytes:
      return 64;
    case TensorSwizzle::k128Bytes:
      return 128;
  }
  return 0;
}

std::string dimension_misfit(const TensorMap& map, int dimension) {
  constexpr std::int64_t kMostExtent = std::int64_t{1} << 32;
  constexpr std::int64_t kMostStride = std::int64_t{1} << 40;
  const std::int64_t extent = entry(map.extents, dimension);
  const std::int64_t stride = entry(map.strides, dimension);
  const int box = entry(map.box, dimension);
  if (extent < 1 || extent > kMostExtent) {
    return fmt::format("{} elements in dimension {}, 1 to 2^32 are possible", extent, dimension);
  }
  if (box < 1 || box > kMostBoxElements) {
    return fmt::format("the box has {} elements in dimension {}, 1 to {} are possible", box,
                       dimension, kMostBoxElements);
  }
  if (dimension == 0) return "";
  if (stride < 0 || stride >= kMostStride || stride % kAlignment != 0) {
    return fmt::format(
        "dimension {} has a stride of {} bytes, a multiple of {} below 2^40 is "
        "needed",
        dimension, stride, kAlignment);
  }
  return "";
}

std::string row_misfit(const TensorMap& map) {
  const std::int64_t row = map.box[0] * static_cast<std::int64_t>(dtype_size(map.dtype));
  const std::int64_t span = span_bytes(map.swizzle);
  if (row % kAlignment != 0) {
    return fmt::format("the box has rows of {} bytes, a multiple of {} is needed", row, kAlignment);
  }
  if (span != 0 && row > span) {
    return fmt::format("the box has rows of {} bytes, a swizzle takes at most its span of {}", row,
                       span);
  }
  return "";
}

}  // namespace

std::int64_t TensorMap::box_bytes() const {
  auto bytes = static_cast<std::int64_t>(dtype_size(dtype));
  for (int i = 0; i < rank; ++i) bytes *= entry(box, i);
  return bytes;
}

std::string tensor_map_misfit(const TensorMap& map) {
  if (map.rank < 1 || map.rank > TensorMap::kMaxRank) {
    return fmt::format("{} dimensions, 1 to {} are possible", map.rank, TensorMap::kMaxRank);
  }
  if (reinterpret_cast<std::uintptr_t>(map.data) % kAlignment != 0) {
    return fmt::format("memory that is not on a multiple of {} bytes", kAlignment);
  }
  for (int i = 0; i < map.rank; ++i) {
    if (std::string reason = dimension_misfit(map, i); !reason.empty()) return reason;
  }
  return row_misfit(map);
}

EncodedTensorMap encode_tensor_map(Runtime& runtime, const TensorMap& map) {
  if (const std::string reason = tensor_map_misfit(map); !reason.empty()) {
    fail(ErrorKind::kInternal, "tensor map: {}", reason);
  }
  const auto encode = reinterpret_cast<Encode>(runtime.driver_function(kEncode));
  if (encode == nullptr) {
    throw DeviceError(fmt::format("{} is not in the driver, which serves CUDA {}: tensor maps need "
                                  "12.0 or newer",
                                  kEncode, runtime.device().driver),
                      false);
  }
  TensorMap::PerDimension<std::uint64_t> extents{};
  TensorMap::PerDimension<std::uint64_t> strides{};  // from dimension 1 on
  TensorMap::PerDimension<std::uint32_t> box{};
  TensorMap::PerDimension<std::uint32_t> element_strides{};
  for (std::size_t i = 0; i < static_cast<std::size_t>(map.rank); ++i) {
    extents[i] = static_cast<std::uint64_t>(map.extents[i]);
    if (i > 0) strides[i - 1] = static_cast<std::uint64_t>(map.strides[i]);
    box[i] = static_cast<std::uint32_t>(map.box[i]);
    element_strides[i] = 1;
  }
  constexpr int kNoInterleave = 0;
  constexpr int kFillZeros = 0;
  EncodedTensorMap encoded;
  const int status =
      encode(encoded.bytes.data(), tensor_data_type(map.dtype),
             static_cast<std::uint32_t>(map.rank), const_cast<void*>(map.data), extents.data(),
             strides.data(), box.data(), element_strides.data(), kNoInterleave,
             static_cast<int>(map.swizzle), static_cast<int>(map.promotion), kFillZeros);
  if (status != 0) {
    throw DeviceError(fmt::format("{}: status {}", kEncode, status), false);
  }
  return encoded;
}

}  // namespace attnbench
