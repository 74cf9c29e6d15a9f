// A program that was built without the headers of cudnn-frontend: cuDNN is of no use to it. The
// empty version makes find_cudnn() say so, and the backend CUDNN refuses every case with that
// reason. frontend/ has the same functions with the headers.
#include "core/error.h"
#include "cudnn/frontend.h"

namespace attnbench {

std::string frontend_version() { return ""; }

bool bind_cudnn(const DynamicLibrary&) { return true; }

std::unique_ptr<CudnnPlan> make_frontend_plan(const CudnnGraph&, void*, const std::string&) {
  fail(ErrorKind::kInternal, "cuDNN: built without cudnn-frontend");
}

}  // namespace attnbench
