// The device memory of one pipeline: copies of inputs, workspaces that can be poisoned, and what
// they hold after a run.
#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "core/tensor.h"
#include "ops/operation_table.h"
#include "ops/ops.h"

namespace attnbench {

/// Everything lives as long as this. Errors of all that allocate: E-CAPACITY.
class DeviceBuffers {
 public:
  /// `ops` must outlive it.
  explicit DeviceBuffers(Ops& ops) : ops_(ops) {}
  DeviceBuffers(const DeviceBuffers&) = delete;
  DeviceBuffers& operator=(const DeviceBuffers&) = delete;
  Ops& ops() { return ops_; }

  /// Memory that poison() leaves as it is; it begins as poison.
  Buffer& allocate(std::size_t size_bytes, const std::string& name);
  /// Memory that poison() refills.
  void* workspace(std::int64_t size_bytes, const std::string& name);
  template <typename T>
  T* workspace_of(std::int64_t count, const std::string& name) {
    return static_cast<T*>(workspace(count * static_cast<std::int64_t>(sizeof(T)), name));
  }
  void* workspace_of(attn::Element element, std::int64_t count, const std::string& name) {
    return workspace(count * static_cast<std::int64_t>(element_size(element)), name);
  }

  /// A copy of what lies on the host.
  const void* upload(const void* data, std::size_t size_bytes, const std::string& name);
  const void* upload(const Tensor& tensor, const std::string& name) {
    return upload(tensor.bytes(), tensor.size_bytes(), name);
  }
  template <typename T>
  const T* upload_of(const Tensor& tensor, const std::string& name) {
    return static_cast<const T*>(upload(tensor, name));
  }
  template <typename T>
  const T* upload(const std::vector<T>& values, const std::string& name) {
    return static_cast<const T*>(upload(values.data(), values.size() * sizeof(T), name));
  }

  /// The buffer that begins at `data`; E-INTERNAL when there is none.
  Buffer& starting_at(const void* data);
  void poison();
  /// Of what poison() refills.
  std::size_t poisoned_bytes() const;

  /// What lies at the beginning of the buffer that begins at `data`, after Ops::synchronize().
  Tensor read(const void* data, Dtype dtype, const std::vector<std::int64_t>& shape);
  /// The first shape[0] rows of a workspace of [more rows, ...].
  struct Rows {
    Tensor rows;
    /// The first of the other rows that does not hold poison any more.
    std::optional<std::int64_t> written_past;
  };
  Rows read_rows(const void* data, Dtype dtype, const std::vector<std::int64_t>& shape);
  /// An LSE f32 [heads, tokens], of which the workspace has `row_stride` >= tokens a head.
  Tensor read_lse(const void* data, std::int64_t heads, std::int64_t tokens,
                  std::int64_t row_stride);

 private:
  Ops& ops_;
  std::vector<std::unique_ptr<Buffer>> buffers_;
  std::vector<Buffer*> poisoned_;
};

/// Whether all bytes are those that nobody has written since Ops::poison().
bool holds_poison(const std::byte* begin, const std::byte* end);

}  // namespace attnbench
