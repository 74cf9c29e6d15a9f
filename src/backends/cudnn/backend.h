// CUDNN: NVIDIA's attention as a peer to compare with, where its library is found (contract
// section 2).
#pragma once

#include <memory>

#include "backends/backend.h"
#include "cudnn/library.h"

namespace attnbench {

/// `find` is asked when something about cuDNN is asked for the first time; what it returns must
/// outlive the backend.
std::unique_ptr<Backend> make_cudnn_backend(const CudnnChoice& (*find)());

}  // namespace attnbench
