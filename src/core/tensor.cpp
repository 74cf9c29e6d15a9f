// Memory and conversion of host tensors. Caches of a case reach many gigabytes, so zeros come from
// the system lazily or from the tensors of the case before, and copies run on several threads.
#include "core/tensor.h"

#include <algorithm>

#include <bit>
#include <cmath>
#include <cstring>
#include <limits>

#include "core/error.h"
#include "core/system/page_pool.h"
#include "core/system/parallel.h"

namespace attnbench {
namespace {

std::size_t checked_bytes(Dtype dtype, const std::vector<std::int64_t>& shape) {
  std::int64_t count = 1;
  for (std::int64_t extent : shape) {
    if (extent < 0) fail(ErrorKind::kShape, "tensor extent must be >= 0, got {}", extent);
    if (__builtin_mul_overflow(count, extent, &count)) {
      fail(ErrorKind::kCapacity, "tensor has more than 2^63 elements");
    }
  }
  std::int64_t bytes = 0;
  if (__builtin_mul_overflow(count, static_cast<std::int64_t>(dtype_size(dtype)), &bytes)) {
    fail(ErrorKind::kCapacity, "tensor has more than 2^63 bytes");
  }
  return static_cast<std::size_t>(bytes);
}

/// Why: rounding to float and then to 16 bits would round twice. A float whose last bit is set
/// wherever something was cut off rounds on as the double would have.
float round_to_odd(double value) {
  auto result = static_cast<float>(value);
  if (static_cast<double>(result) == value || !(value == value)) return result;
  if (std::fabs(static_cast<double>(result)) > std::fabs(value)) {
    result = std::nextafter(result, 0.0f);
  }
  return std::bit_cast<float>(std::bit_cast<std::uint32_t>(result) | 1u);
}

template <typename T>
Tensor from_values(Dtype dtype, std::span<const T> values, std::vector<std::int64_t> shape) {
  if (shape.empty()) shape = {static_cast<std::int64_t>(values.size())};
  Tensor tensor(dtype, std::move(shape));
  if (tensor.size_bytes() != values.size_bytes()) {
    fail(ErrorKind::kShape, "{} values do not fill a tensor of {} elements", values.size(),
         tensor.num_elements());
  }
  if (!values.empty()) std::memcpy(tensor.bytes(), values.data(), values.size_bytes());
  return tensor;
}

/// On several threads. Why: the first touch of memory costs more than the copy.
void copy_bytes(std::byte* destination, const std::byte* source, std::size_t size_bytes) {
  constexpr std::int64_t kChunk = 4 << 20;
  for_each_chunk(
      static_cast<std::int64_t>(size_bytes), kChunk, [&](std::int64_t begin, std::int64_t end) {
        std::memcpy(destination + begin, source + begin, static_cast<std::size_t>(end - begin));
      });
}

constexpr std::align_val_t kAlignment{64};

}  // namespace

ZeroBytes::ZeroBytes(std::size_t size) {
  if (size == 0) return;
  data_ = size < kLargePiece
              ? static_cast<std::byte*>(std::memset(::operator new(size, kAlignment), 0, size))
              : process_page_pool().take(size);
  size_ = size;
}

ZeroBytes ZeroBytes::for_overwriting(std::size_t size) {
  if (size < kLargePiece) return ZeroBytes(size);
  ZeroBytes bytes;
  bytes.data_ = process_page_pool().take(size, PieceContents::kAny);
  bytes.size_ = size;
  return bytes;
}

ZeroBytes ZeroBytes::borrowed(std::byte* data, std::size_t size) {
  ZeroBytes bytes;
  bytes.data_ = data;
  bytes.size_ = size;
  bytes.is_borrowed_ = true;
  return bytes;
}

ZeroBytes::~ZeroBytes() {
  if (data_ == nullptr || is_borrowed_) return;
  if (size_ < kLargePiece) {
    ::operator delete(data_, kAlignment);
  } else {
    process_page_pool().give_back(data_, size_);
  }
}

Tensor::Tensor(Dtype dtype, std::vector<std::int64_t> shape)
    : dtype_(dtype), shape_(std::move(shape)), bytes_(checked_bytes(dtype_, shape_)) {}

Tensor Tensor::for_overwriting(Dtype dtype, std::vector<std::int64_t> shape) {
  Tensor tensor;
  tensor.bytes_ = ZeroBytes::for_overwriting(checked_bytes(dtype, shape));
  tensor.dtype_ = dtype;
  tensor.shape_ = std::move(shape);
  return tensor;
}

Tensor Tensor::view_rows(const Tensor& tensor, std::int64_t first, std::int64_t count) {
  const std::int64_t rows = tensor.shape_.empty() ? 0 : tensor.dim(0);
  if (first < 0 || count < 0 || count > rows - first) {
    fail(ErrorKind::kShape, "a view of {} rows from {} on: the tensor has {}", count, first, rows);
  }
  Tensor result;
  result.dtype_ = tensor.dtype_;
  result.shape_ = tensor.shape_;
  result.shape_[0] = count;
  if (tensor.empty()) return result;
  const std::size_t row_bytes = tensor.size_bytes() / static_cast<std::size_t>(rows);
  // Why const_cast: a tensor that only may be read would be a type of its own, everywhere.
  result.bytes_ = ZeroBytes::borrowed(
      const_cast<std::byte*>(tensor.bytes()) + static_cast<std::size_t>(first) * row_bytes,
      static_cast<std::size_t>(count) * row_bytes);
  return result;
}

Tensor Tensor::view(const Tensor& tensor) {
  return tensor.shape_.empty() ? Tensor() : view_rows(tensor, 0, tensor.dim(0));
}

Tensor::Tensor(const Tensor& other)
    : dtype_(other.dtype_),
      shape_(other.shape_),
      bytes_(ZeroBytes::for_overwriting(other.bytes_.size())) {
  copy_bytes(bytes(), other.bytes(), size_bytes());
}

Tensor& Tensor::operator=(const Tensor& other) {
  if (this != &other) *this = Tensor(other);
  return *this;
}

std::int64_t Tensor::num_elements() const {
  return static_cast<std::int64_t>(bytes_.size() / dtype_size(dtype_));
}

Tensor Tensor::from_i32(std::span<const std::int32_t> values, std::vector<std::int64_t> shape) {
  return from_values(Dtype::kI32, values, std::move(shape));
}
Tensor Tensor::from_i64(std::span<const std::int64_t> values, std::vector<std::int64_t> shape) {
  return from_values(Dtype::kI64, values, std::move(shape));
}
Tensor Tensor::from_f32(std::span<const float> values, std::vector<std::int64_t> shape) {
  return from_values(Dtype::kF32, values, std::move(shape));
}
Tensor Tensor::from_f64(std::span<const double> values, std::vector<std::int64_t> shape) {
  return from_values(Dtype::kF64, values, std::move(shape));
}

Tensor slice_rows(const Tensor& tensor, std::int64_t first, std::int64_t count) {
  std::vector<std::int64_t> shape = tensor.shape();
  const std::int64_t rows = std::max<std::int64_t>(shape[0], 1);
  const std::size_t row_bytes = tensor.size_bytes() / static_cast<std::size_t>(rows);
  shape[0] = count;
  Tensor result = Tensor::for_overwriting(tensor.dtype(), std::move(shape));
  if (count > 0) {
    copy_bytes(result.bytes(), tensor.bytes() + static_cast<std::size_t>(first) * row_bytes,
               static_cast<std::size_t>(count) * row_bytes);
  }
  return result;
}

Tensor zeros_of_rows(const Tensor& tensor, std::int64_t rows) {
  if (tensor.shape().empty()) return {};
  std::vector<std::int64_t> shape = tensor.shape();
  shape[0] = rows;
  return Tensor(tensor.dtype(), std::move(shape));
}

Tensor convert(const Tensor& source, Dtype dtype) {
  constexpr std::int64_t kChunk = 1 << 16;
  Tensor result = Tensor::for_overwriting(dtype, source.shape());
  const auto source_size = static_cast<std::int64_t>(dtype_size(source.dtype()));
  const auto result_size = static_cast<std::int64_t>(dtype_size(dtype));
  const bool from_double = source.dtype() == Dtype::kF64 && dtype != Dtype::kF32;
  for_each_chunk(source.num_elements(), kChunk, [&](std::int64_t begin, std::int64_t end) {
    std::vector<float> values(static_cast<std::size_t>(end - begin));
    if (from_double) {
      for (std::int64_t i = begin; i < end; ++i) {
        values[static_cast<std::size_t>(i - begin)] = round_to_odd(source.data<double>()[i]);
      }
    } else {
      load_floats(source.dtype(), source.bytes() + begin * source_size, end - begin, values.data());
    }
    store_floats(dtype, values.data(), end - begin, result.bytes() + begin * result_size);
  });
  return result;
}

}  // namespace attnbench
