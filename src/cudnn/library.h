// cuDNN, which is looked for when the program runs.
//
// The backend CUDNN, and through it every comparison with NVIDIA's own kernels, is built on this
// interface; tests put a fake behind it and need neither library nor device. That cuDNN is missing
// is no error but a reason why the backend takes no case.
#pragma once

#include <memory>
#include <string>
#include <vector>

#include "cudnn/graph.h"

namespace attnbench {

/// An opened library. One object lives until the program ends: cuDNN keeps threads and memory that
/// unloading would orphan.
class CudnnLibrary {
 public:
  virtual ~CudnnLibrary() = default;
  virtual const std::string& path() const = 0;
  /// "9.19.0, frontend 1.32.0": of the library that was opened and of the headers compiled in, both
  /// of which decide what kernel is chosen. Part of every result.
  virtual const std::string& version() const = 0;
  /// A plan for the current device and `stream`, a CUDA stream. Takes up to seconds, as cuDNN may
  /// compile. Errors: kUnsupported with cuDNN's words when it has no kernel for the graph.
  virtual std::unique_ptr<CudnnPlan> plan(const CudnnGraph& graph, void* stream) const = 0;
};

/// What find_cudnn() came to; all reasons at once, since each needs another package.
struct CudnnChoice {
  const CudnnLibrary* library = nullptr;  // null when anything is missing
  std::vector<std::string> missing;       // "cuDNN not found"
};

/// Looks once for libcudnn.so.9 in the active virtual environment of Python, then where the loader
/// looks (LD_LIBRARY_PATH), and takes the first that is new enough. Touches no device.
const CudnnChoice& find_cudnn();

}  // namespace attnbench
