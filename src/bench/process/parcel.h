// Tensors on their way to another process: a text that describes them, and a file in memory with
// their bytes.
//
// The receiver trusts neither. It copies the bytes before it looks at them, since the sender may
// still write to the file, and takes no size at its word. The file has no name: it goes with the
// message, as a descriptor, and is gone when both sides have closed it, whichever of them dies
// first.
#pragma once

#include <cstdint>
#include <cstring>
#include <optional>
#include <string>
#include <type_traits>
#include <utility>
#include <vector>

#include "backends/backend.h"
#include "bench/process/frames.h"
#include "core/tensor.h"

namespace attnbench {

/// Of `bytes` bytes, without a name. Errors: E-CAPACITY.
Descriptor new_memory_file(std::size_t bytes);

/// Its first `size` bytes, to read and write; the descriptor may be closed. Errors: E-CAPACITY.
class MappedFile {
 public:
  MappedFile() = default;
  MappedFile(int file, std::size_t size);
  MappedFile(MappedFile&& other) noexcept { swap(other); }
  MappedFile& operator=(MappedFile&& other) noexcept {
    MappedFile taken(std::move(other));
    swap(taken);
    return *this;
  }
  ~MappedFile();

  std::byte* data() const { return data_; }  // null for size 0
  std::size_t size() const { return size_; }

 private:
  void swap(MappedFile& other) {
    std::swap(data_, other.data_);
    std::swap(size_, other.size_);
  }

  std::byte* data_ = nullptr;
  std::size_t size_ = 0;
};

struct Parcel {
  std::string text;
  Descriptor file = Descriptor();
};

/// Numbers, strings and tensors in a row; the reader takes them in the same order.
class ParcelWriter {
 public:
  /// Errors: E-CAPACITY when there is no memory for the file; of the others too.
  ParcelWriter();
  template <typename T>
  void number(T value) {
    static_assert(std::is_arithmetic_v<T>);
    text_.append(reinterpret_cast<const char*>(&value), sizeof value);
  }
  void string(const std::string& value);
  /// [first, first + count) of the outermost axis; count -1 = all.
  void tensor(const Tensor& tensor, std::int64_t first = 0, std::int64_t count = -1);
  void optional_tensor(const std::optional<Tensor>& tensor);
  template <typename T>
  void numbers(const std::vector<T>& values) {
    number(static_cast<std::uint64_t>(values.size()));
    for (const T value : values) number(value);
  }
  /// Each tensor is let go when it is packed, so that a cache of many gigabytes is not there twice.
  void output(PipelineOutput&& output);
  Parcel take() { return {std::move(text_), std::move(file_)}; }

 private:
  std::string text_;
  Descriptor file_;
  std::size_t offset_ = 0;
};

/// Empties the file while it reads it. Errors: E-INTERNAL for anything that a ParcelWriter does not
/// write; E-CAPACITY.
class ParcelReader {
 public:
  /// Both must outlive it.
  ParcelReader(const std::string& text, const Descriptor& file);
  template <typename T>
  T number() {
    T value;
    copy(&value, sizeof value);
    return value;
  }
  bool flag() { return number<std::uint8_t>() != 0; }
  /// Less than `count`.
  template <typename T>
  T below(T count) {
    const T value = number<T>();
    if (value >= count) fail_to_read();
    return value;
  }
  std::string string();
  Tensor tensor();
  std::optional<Tensor> optional_tensor();
  template <typename T>
  std::vector<T> numbers() {
    std::vector<T> values(below((text_.size() - at_) / sizeof(T) + 1));
    for (T& value : values) value = number<T>();
    return values;
  }
  PipelineOutput output();
  /// Nothing must follow.
  void end() const;

 private:
  [[noreturn]] static void fail_to_read();
  void copy(void* value, std::size_t size);

  const std::string& text_;
  std::size_t at_ = 0;
  int file_;
  std::size_t size_ = 0;
  std::size_t offset_ = 0;
};

}  // namespace attnbench
