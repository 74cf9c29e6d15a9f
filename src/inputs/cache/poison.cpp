// The codes of poison. Two in turn, of both signs: where a type has no NaN, a maximum shows the one
// extreme and a minimum the other; where it has, neither the sign nor a sum can cancel it.
#include "inputs/cache/poison.h"

#include <algorithm>
#include <array>
#include <cstring>
#include <utility>

#include "core/error.h"
#include "core/system/parallel.h"

namespace attnbench {

void fill_poison(Dtype dtype, std::byte* bytes, std::size_t size_bytes) {
  const auto fill = [&](auto even, auto odd) {
    auto* data = reinterpret_cast<decltype(even)*>(bytes);
    const auto count = static_cast<std::int64_t>(size_bytes / sizeof(even));
    std::array<decltype(even), 1024> codes;  // copied as a whole: caches have gigabytes
    for (std::size_t i = 0; i < codes.size(); ++i) codes[i] = i % 2 == 0 ? even : odd;
    constexpr auto kCodes = static_cast<std::int64_t>(codes.size());
    for_each_chunk(count, 1 << 20, [&](std::int64_t begin, std::int64_t end) {
      for (std::int64_t i = begin; i < end; i += kCodes) {
        std::copy_n(codes.data(), std::min(kCodes, end - i), data + i);
      }
    });
  };
  using u8 = std::uint8_t;
  using u16 = std::uint16_t;
  switch (dtype) {
    case Dtype::kF32:
      return fill(std::uint32_t{0x7FC00000}, std::uint32_t{0xFFC00000});
    case Dtype::kF64:
      return fill(std::uint64_t{0x7FF8} << 48, std::uint64_t{0xFFF8} << 48);
    case Dtype::kF16:
      return fill(u16{0x7E00}, u16{0xFE00});
    case Dtype::kBF16:
      return fill(u16{0x7FC0}, u16{0xFFC0});
    case Dtype::kE4M3:
      return fill(u8{0x7F}, u8{0xFF});
    case Dtype::kE5M2:
      return fill(u8{0x7F}, u8{0xFC});
    case Dtype::kI8:
    case Dtype::kU8:
      return fill(u8{0x7F}, u8{0x80});
    case Dtype::kI32:
    case Dtype::kI64:
      break;
  }
  fail(ErrorKind::kInternal, "no poison for dtype {}", dtype_name(dtype));
}

void fill_poison(Tensor& tensor) {
  fill_poison(tensor.dtype(), tensor.bytes(), tensor.size_bytes());
}

Tensor poisoned_tensor(Dtype dtype, std::vector<std::int64_t> shape) {
  Tensor tensor(dtype, std::move(shape));
  const int byte = dtype == Dtype::kI8 ? 0x80 : 0xFF;
  if (!tensor.empty()) std::memset(tensor.bytes(), byte, tensor.size_bytes());
  return tensor;
}

}  // namespace attnbench
