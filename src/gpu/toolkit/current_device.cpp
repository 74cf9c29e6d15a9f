#include "gpu/current_device.h"

#include <cuda_runtime_api.h>

namespace attnbench {

KeepDevice::KeepDevice(bool is_cuda) {
  if (is_cuda && cudaGetDevice(&index_) != cudaSuccess) index_ = -1;
}

KeepDevice::~KeepDevice() {
  int now = index_;
  if (index_ >= 0 && cudaGetDevice(&now) == cudaSuccess && now != index_) cudaSetDevice(index_);
}

}  // namespace attnbench
