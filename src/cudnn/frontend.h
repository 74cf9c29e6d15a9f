// What is behind the headers of cudnn-frontend, or of a program that was built without them.
#pragma once

#include <memory>
#include <string>

#include "cudnn/graph.h"
#include "gpu/dynamic_library.h"

namespace attnbench {

/// Version of the headers, "1.32.0"; empty when there were none.
std::string frontend_version();
/// Takes the functions that the headers call from `library`, which must stay open. False when it
/// lacks one.
bool bind_cudnn(const DynamicLibrary& library);
/// As CudnnLibrary::plan, after bind_cudnn(). `version` is for messages.
std::unique_ptr<CudnnPlan> make_frontend_plan(const CudnnGraph& graph, void* stream,
                                              const std::string& version);

}  // namespace attnbench
