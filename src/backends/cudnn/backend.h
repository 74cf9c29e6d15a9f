// CUDNN: NVIDIA's attention as a peer to compare with, where its library is found (contract
// section 2).
#pragma once

#include <memory>
#include <string>
#include <vector>

#include "backends/backend.h"
#include "cudnn/library.h"

namespace attnbench {

/// `find` is asked when something about cuDNN is asked for the first time; what it returns must
/// outlive the backend.
std::unique_ptr<Backend> make_cudnn_backend(const CudnnChoice& (*find)());

// What cuDNN's attention does not do, as far as its documentation says so; the rest it says itself
// when a plan is made.

/// All reasons against the problem, those of semantics §13 in its words; `missing` are those of the
/// library. Limits of cuDNN 9.13 to 9.19 by its frontend's documentation of attention and, where
/// it says nothing, by what was seen on an H200.
std::vector<std::string> cudnn_refusals(const Problem& problem, const DeviceFacts& device,
                                        const std::vector<std::string>& missing);

}  // namespace attnbench
