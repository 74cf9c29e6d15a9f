// What the choice of a tile of kernels/attention/general.cuh leaves room for.
#pragma once

namespace attnbench::cuda {

/// What the kernels of general.cuh declare of shared memory beside what a launch asks for, at most.
constexpr int kGeneralStaticSharedBytes = 4096;

}  // namespace attnbench::cuda
