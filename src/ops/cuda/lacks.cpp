// Which problems the CUDA operations refuse.
#include "ops/cuda/cuda_ops.h"

namespace attnbench {

// Every operation has a kernel; a later one that lacks some form of it names the problems here, so
// that they are refused before they are run.
std::vector<std::string> cuda_lacks(const Problem&) { return {}; }

}  // namespace attnbench
