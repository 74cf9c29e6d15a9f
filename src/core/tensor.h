// A dense row-major array on the host. It owns its bytes, unless it is a view of another one's.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <new>
#include <span>
#include <utility>
#include <vector>

#include "core/numbers/dtype.h"

namespace attnbench {

/// Allocates on 64-byte boundaries, so that any vector instruction may load from the start.
template <typename T>
struct AlignedAllocator {
  using value_type = T;
  static constexpr std::align_val_t kAlignment{64};
  AlignedAllocator() = default;
  template <typename U>
  AlignedAllocator(const AlignedAllocator<U>&) {}
  T* allocate(std::size_t count) {
    return static_cast<T*>(::operator new(count * sizeof(T), kAlignment));
  }
  void deallocate(T* pointer, std::size_t) { ::operator delete(pointer, kAlignment); }
  template <typename U>
  bool operator==(const AlignedAllocator<U>&) const {
    return true;
  }
};

/// Zeros on a 64-byte boundary. Large blocks come from the system, which gives a page when it is
/// first touched: a tensor that is only looked at from outside costs addresses and no memory.
class ZeroBytes {
 public:
  ZeroBytes() = default;
  /// Errors: std::bad_alloc.
  explicit ZeroBytes(std::size_t size);
  /// Of any contents.
  static ZeroBytes for_overwriting(std::size_t size);
  /// Somebody else's, who keeps them for longer.
  static ZeroBytes borrowed(std::byte* data, std::size_t size);
  ZeroBytes(ZeroBytes&& other) noexcept
      : data_(std::exchange(other.data_, nullptr)),
        size_(std::exchange(other.size_, 0)),
        is_borrowed_(std::exchange(other.is_borrowed_, false)) {}
  ZeroBytes& operator=(ZeroBytes&& other) noexcept {
    std::swap(data_, other.data_);
    std::swap(size_, other.size_);
    std::swap(is_borrowed_, other.is_borrowed_);
    return *this;
  }
  ~ZeroBytes();

  /// Null when the size is 0.
  std::byte* data() { return data_; }
  const std::byte* data() const { return data_; }
  std::size_t size() const { return size_; }

 private:
  std::byte* data_ = nullptr;
  std::size_t size_ = 0;
  bool is_borrowed_ = false;
};

class Tensor {
 public:
  Tensor() = default;
  /// Zero-filled. Errors: E-SHAPE for a negative extent, E-CAPACITY when the size overflows.
  Tensor(Dtype dtype, std::vector<std::int64_t> shape);
  /// With any contents, for one who writes every byte: to clear hundreds of megabytes first takes
  /// as long as to write them. Errors: as above.
  static Tensor for_overwriting(Dtype dtype, std::vector<std::int64_t> shape);
  /// Rows [first, first + count) along the first dimension where they stand: `tensor` outlives the
  /// view, through which nobody writes. A copy of a view owns its bytes.
  static Tensor view_rows(const Tensor& tensor, std::int64_t first, std::int64_t count);
  /// All rows.
  static Tensor view(const Tensor& tensor);
  /// Copies on several threads: caches are large.
  Tensor(const Tensor& other);
  Tensor& operator=(const Tensor& other);
  Tensor(Tensor&&) = default;
  Tensor& operator=(Tensor&&) = default;
  ~Tensor() = default;

  Dtype dtype() const { return dtype_; }
  const std::vector<std::int64_t>& shape() const { return shape_; }
  std::int64_t dim(int axis) const { return shape_[static_cast<std::size_t>(axis)]; }
  std::int64_t num_elements() const;
  std::size_t size_bytes() const { return bytes_.size(); }
  bool empty() const { return bytes_.size() == 0; }

  std::byte* bytes() { return bytes_.data(); }
  const std::byte* bytes() const { return bytes_.data(); }
  /// The elements as T; sizeof(T) must be the element size.
  template <typename T>
  T* data() {
    return reinterpret_cast<T*>(bytes_.data());
  }
  template <typename T>
  const T* data() const {
    return reinterpret_cast<const T*>(bytes_.data());
  }

  float at(std::int64_t index) const { return load_float(dtype_, bytes_.data(), index); }
  void set(std::int64_t index, float value) { store_float(dtype_, bytes_.data(), index, value); }

  static Tensor from_i32(std::span<const std::int32_t> values,
                         std::vector<std::int64_t> shape = {});
  static Tensor from_i64(std::span<const std::int64_t> values,
                         std::vector<std::int64_t> shape = {});
  static Tensor from_f32(std::span<const float> values, std::vector<std::int64_t> shape = {});
  static Tensor from_f64(std::span<const double> values, std::vector<std::int64_t> shape = {});

 private:
  Dtype dtype_ = Dtype::kF32;
  std::vector<std::int64_t> shape_;
  ZeroBytes bytes_;
};

/// Rows [first, first + count) along the first dimension, copied.
Tensor slice_rows(const Tensor& tensor, std::int64_t first, std::int64_t count);

/// Zeros [rows, ...] with the element type and the inner extents of `tensor`; nothing for nothing.
/// For cases of shapes without values: what a transformation makes of one row says what it makes of
/// all.
Tensor zeros_of_rows(const Tensor& tensor, std::int64_t rows);

/// Every element converted with load_float / store_float.
Tensor convert(const Tensor& source, Dtype dtype);

}  // namespace attnbench
