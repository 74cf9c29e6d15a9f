// The device memory of one pipeline: copies of inputs, and workspaces that can be poisoned.
#pragma once

#include <memory>
#include <string>
#include <vector>

#include "core/error.h"
#include "core/tensor.h"
#include "ops/ops.h"

namespace attnbench {

class DeviceBuffers {
 public:
  explicit DeviceBuffers(Ops& ops) : ops_(ops) {}

  /// Memory that poison() refills.
  void* workspace(std::int64_t size_bytes, const std::string& name) {
    buffers_.push_back(ops_.allocate(static_cast<std::size_t>(size_bytes), name));
    poisoned_.push_back(buffers_.back().get());
    return buffers_.back()->data();
  }
  template <typename T>
  T* workspace_of(std::int64_t count, const std::string& name) {
    return static_cast<T*>(workspace(count * static_cast<std::int64_t>(sizeof(T)), name));
  }
  Buffer* last() { return buffers_.back().get(); }
  /// The buffer that begins at `data`; E-INTERNAL when there is none.
  Buffer& starting_at(const void* data) {
    for (const auto& buffer : buffers_) {
      if (buffer->data() == data) return *buffer;
    }
    fail(ErrorKind::kInternal, "device memory: no buffer begins at the given address");
  }

  /// A copy that lives as long as this; the returned buffer is last().
  const void* upload(const void* data, std::size_t size_bytes, const std::string& name) {
    buffers_.push_back(ops_.allocate(size_bytes, name));
    ops_.upload(*buffers_.back(), data, size_bytes);
    return buffers_.back()->data();
  }
  const void* upload(const Tensor& tensor, const std::string& name) {
    return upload(tensor.bytes(), tensor.size_bytes(), name);
  }
  template <typename T>
  const T* upload(const std::vector<T>& values, const std::string& name) {
    return static_cast<const T*>(upload(values.data(), values.size() * sizeof(T), name));
  }

  void poison() {
    for (Buffer* buffer : poisoned_) ops_.poison(*buffer);
  }

 private:
  Ops& ops_;
  std::vector<std::unique_ptr<Buffer>> buffers_;
  std::vector<Buffer*> poisoned_;
};

}  // namespace attnbench
