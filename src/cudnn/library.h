// cuDNN, which is looked for when the program runs.
#pragma once

#include <memory>
#include <string>
#include <vector>

#include "cudnn/graph.h"

namespace attnbench {

class CudnnLibrary {
 public:
  virtual ~CudnnLibrary() = default;
  virtual const std::string& path() const = 0;
  /// "9.19.0, frontend 1.32.0"
  virtual const std::string& version() const = 0;
  /// A plan for the current device and `stream`, a CUDA stream. Takes up to seconds, as cuDNN may
  /// compile. Errors: kUnsupported with cuDNN's words when it has no kernel for the graph.
  virtual std::unique_ptr<CudnnPlan> plan(const CudnnGraph& graph, void* stream) const = 0;
};

struct CudnnChoice {
  const CudnnLibrary* library = nullptr;  // null when anything is missing
  std::vector<std::string> missing;       // "cuDNN not found"
};

/// Looks once for libcudnn.so.9 where the loader looks (LD_LIBRARY_PATH), then in the active
/// virtual environment of Python. Touches no device.
const CudnnChoice& find_cudnn();

}  // namespace attnbench
