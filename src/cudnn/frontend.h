// What the headers of cudnn-frontend are used for, in three functions, so that one file includes
// them: they are large, and a program may be built without them.
//
// The build chooses between two realisations: frontend/ with the headers (plan.cpp builds graphs,
// entry_points.cpp has the functions that the headers call), no_frontend.cpp without. Neither links
// cuDNN: the library is opened when the program runs (library.h) and handed to bind_cudnn(), so one
// binary serves machines with and without it. Only library.cpp calls these functions.
//
// What frontend/ throws is the Error of this program and never an exception of the headers, whose
// texts it carries: kUnsupported where cuDNN has no kernel for a graph, kCuda where a call failed.
#pragma once

#include <memory>
#include <string>

#include "cudnn/graph.h"
#include "gpu/dynamic_library.h"

namespace attnbench {

/// Version of the headers, "1.32.0"; empty when there were none, which is how library.cpp learns
/// that this program cannot use cuDNN at all.
std::string frontend_version();
/// Takes the functions that the headers call from `library`, which must stay open for good. False
/// when it has not all of them. True without headers, where nothing is
/// needed.
bool bind_cudnn(const DynamicLibrary& library);
/// As CudnnLibrary::plan, after bind_cudnn(). `stream` is a cudaStream_t of the current device; the
/// plan runs on it and must not outlive it. `version` is for messages.
std::unique_ptr<CudnnPlan> make_frontend_plan(const CudnnGraph& graph, void* stream,
                                              const std::string& version);

}  // namespace attnbench
