// Buffers are found again by the address that they begin at. A pipeline has some dozens of them,
// and looks them up outside of what is timed, so a list is enough.
#include "backends/device_buffers.h"

#include <algorithm>

#include "core/error.h"

namespace attnbench {
namespace {

const std::byte* first_written(const std::byte* begin, const std::byte* end) {
  return std::find_if(begin, end, [](std::byte b) { return b != std::byte{0xFF}; });
}

}  // namespace

Buffer& DeviceBuffers::allocate(std::size_t size_bytes, const std::string& name) {
  return *buffers_.emplace_back(ops_.allocate(size_bytes, name));
}

void* DeviceBuffers::workspace(std::int64_t size_bytes, const std::string& name) {
  Buffer& buffer = allocate(static_cast<std::size_t>(size_bytes), name);
  poisoned_.push_back(&buffer);
  return buffer.data();
}

const void* DeviceBuffers::upload(const void* data, std::size_t size_bytes,
                                  const std::string& name) {
  Buffer& buffer = allocate(size_bytes, name);
  ops_.upload(buffer, data, size_bytes);
  return buffer.data();
}

Buffer& DeviceBuffers::starting_at(const void* data) {
  for (const auto& buffer : buffers_) {
    if (buffer->data() == data) return *buffer;
  }
  fail(ErrorKind::kInternal, "device memory: no buffer begins at the given address");
}

void DeviceBuffers::poison() {
  for (Buffer* buffer : poisoned_) ops_.poison(*buffer);
}

std::size_t DeviceBuffers::poisoned_bytes() const {
  std::size_t bytes = 0;
  for (const Buffer* buffer : poisoned_) bytes += buffer->size_bytes();
  return bytes;
}

Tensor DeviceBuffers::read(const void* data, Dtype dtype, const std::vector<std::int64_t>& shape) {
  Tensor tensor = Tensor::for_overwriting(dtype, shape);
  ops_.download(tensor.bytes(), starting_at(data), tensor.size_bytes());
  return tensor;
}

DeviceBuffers::Rows DeviceBuffers::read_rows(const void* data, Dtype dtype,
                                             const std::vector<std::int64_t>& shape) {
  Buffer& buffer = starting_at(data);
  Rows result{Tensor::for_overwriting(dtype, shape), std::nullopt};
  const std::size_t size = result.rows.size_bytes();
  ops_.download(result.rows.bytes(), buffer, size);
  if (buffer.size_bytes() == size) return result;
  // Rows past the last token belong to padding of CUDA graphs; a kernel that writes there would hit
  // other requests' memory in an engine.
  std::vector<std::byte> padding(buffer.size_bytes() - size);
  ops_.download(padding.data(), buffer, padding.size(), size);
  const std::byte* const begin = padding.data();
  const std::byte* const written = first_written(begin, begin + padding.size());
  if (written == begin + padding.size()) return result;
  auto row_bytes = static_cast<std::int64_t>(dtype_size(dtype));
  for (std::size_t axis = 1; axis < shape.size(); ++axis) row_bytes *= shape[axis];
  result.written_past = (static_cast<std::int64_t>(size) + (written - begin)) / row_bytes;
  return result;
}

Tensor DeviceBuffers::read_lse(const void* data, std::int64_t heads, std::int64_t tokens,
                               std::int64_t row_stride) {
  const Tensor padded = read(data, Dtype::kF32, {heads, row_stride});
  Tensor lse(Dtype::kF32, {heads, tokens});
  for (std::int64_t head = 0; head < heads; ++head) {
    std::copy_n(padded.data<float>() + head * row_stride, tokens,
                lse.data<float>() + head * tokens);
  }
  return lse;
}

bool holds_poison(const std::byte* begin, const std::byte* end) {
  return first_written(begin, end) == end;
}

}  // namespace attnbench
