// Tensors that a run returned in place of those that it was given, copied to where results are
// judged. Their addresses and strides were noted while the time ran (plugin_library.h), so no code
// of the user runs between the end of a time and this copy, which is queued on the same stream.
#pragma once

#include <cstdint>
#include <vector>

#include "backends/device_buffers.h"
#include "plugin/plugin_library.h"

namespace attnbench {

/// A strided tensor as bits: copies of elements of `element_bytes` (1, 2 or 4) from one set of
/// strides to another, both in elements.
struct StridedCopy {
  int element_bytes = 0;
  const void* source = nullptr;
  void* target = nullptr;
  std::vector<std::int64_t> shape;
  std::vector<std::int64_t> source_strides;
  std::vector<std::int64_t> target_strides;
};

/// Queues the copy, in as many operations as its strides need: one, unless there are more than
/// three axes beside rows whose elements lie side by side. Nothing for a shape without elements.
void copy_strided(Ops& ops, const StridedCopy& copy);

/// Where results of a plugin's runs are brought, and what that takes.
class ReturnedTensors {
 public:
  /// `memory` and `tensors`, which may be filled later, must outlive it.
  ReturnedTensors(DeviceBuffers& memory, const AttnbenchTensors& tensors)
      : memory_(memory), tensors_(tensors) {}
  ReturnedTensors(const ReturnedTensors&) = delete;
  ReturnedTensors& operator=(const ReturnedTensors&) = delete;

  /// Queues the copies of all of them to the tensors of the case. Afterwards their own memory is
  /// poison, so that what a later run leaves unwritten there does not hold these values. A tensor
  /// of the case itself stays as it is. Errors: E-CAPACITY at the first call.
  void bring(const std::vector<ReturnedTensor>& returned);

 private:
  StridedCopy copy_of(const ReturnedTensor& part) const;
  const void* poison_line(std::int64_t bytes);

  DeviceBuffers& memory_;
  const AttnbenchTensors& tensors_;
  const void* poison_ = nullptr;
  std::int64_t poison_bytes_ = 0;
};

}  // namespace attnbench
