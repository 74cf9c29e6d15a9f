// What one comparison of screening keeps on the device until it is done.
#pragma once

#include <algorithm>
#include <cstdint>
#include <memory>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include "ops/cuda/measure/screen.h"

namespace attnbench::cuda {

class Screen::Work {
 public:
  explicit Work(Screen& screen) : screen_(screen) {}

  template <typename T>
  const T* upload(std::span<const T> values, const char* name) {
    return static_cast<const T*>(keep(screen_.upload(values.data(), values.size_bytes(), name)));
  }
  const void* upload(const Tensor& tensor, const char* name) {
    return keep(screen_.upload(tensor.bytes(), tensor.size_bytes(), name));
  }
  template <typename T>
  T* make(std::int64_t count, const char* name) {
    const auto bytes = static_cast<std::size_t>(std::max<std::int64_t>(1, count)) * sizeof(T);
    return static_cast<T*>(keep(screen_.ops_.allocate(bytes, std::string("screening: ") + name)));
  }
  /// Waits for all launches, and downloads from the start of what make() gave.
  template <typename T>
  std::vector<T> download(const T* data, std::int64_t count) {
    std::vector<T> values(static_cast<std::size_t>(count));
    for (const std::unique_ptr<Buffer>& buffer : buffers_) {
      if (buffer->data() != data || count == 0) continue;
      screen_.ops_.synchronize();
      screen_.ops_.download(values.data(), *buffer, values.size() * sizeof(T));
    }
    return values;
  }
  /// Waits for all launches; what was made and uploaded since `mark` is gone.
  std::size_t mark() const { return buffers_.size(); }
  void drop_since(std::size_t mark) {
    screen_.ops_.synchronize();
    buffers_.resize(mark);
  }

 private:
  void* keep(std::unique_ptr<Buffer> buffer) {
    buffers_.push_back(std::move(buffer));
    return buffers_.back()->data();
  }

  Screen& screen_;
  std::vector<std::unique_ptr<Buffer>> buffers_;
};

/// Records of [rows, chunks] as those of rows.
std::vector<attn::ScreenRecord> join_chunks(std::vector<attn::ScreenRecord> records,
                                            int num_chunks);

}  // namespace attnbench::cuda
