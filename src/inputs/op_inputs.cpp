#include "inputs/op_inputs.h"

#include <cstring>

namespace attnbench {

Tensor poisoned_tensor(Dtype dtype, std::vector<std::int64_t> shape) {
  Tensor tensor(dtype, std::move(shape));
  const int byte = dtype == Dtype::kI8 ? 0x80 : 0xFF;
  if (!tensor.empty()) std::memset(tensor.bytes(), byte, tensor.size_bytes());
  return tensor;
}

}  // namespace attnbench
