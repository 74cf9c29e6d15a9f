// CUDNN: NVIDIA's attention as a peer to compare with, where its library is found (contract section
// 2). It is a vendor's backend, between the native ones and users': its kernels are not of this
// program, so it names its library and version like a plugin (Backend::plugin()), but it is trusted
// like ours and gets none of the checks of users' kernels.
//
// It runs only when it is named. Its library is looked for at the first question about it, not at
// the start, because most runs do without it. A missing library is a reason against every problem.
//
// A problem is put to it as it is (cudnn/form.h): where it computes something else than the
// definitions, the problem is refused, never changed. Its decode kernels add partial results as
// they come, so two runs may differ in low bits, and such cases are judged by their errors and not
// by equal bytes.
//
// Three files: form turns a problem into a graph of cuDNN and its results into ours, without
// calling it; pipeline runs the plan that src/cudnn made of the graph; this one is the backend
// around them. Only src/cudnn knows the library itself, so all of this builds and is tested without
// it.
#pragma once

#include <memory>
#include <string>
#include <vector>

#include "backends/backend.h"
#include "cudnn/library.h"

namespace attnbench {

/// For tests, which bring a library of their own. `find` is called at the first question that needs
/// the library; what it returns must outlive the backend. The backend of the list is made with
/// find_cudnn().
std::unique_ptr<Backend> make_cudnn_backend(const CudnnChoice& (*find)());

/// What cuDNN's attention does not do, as far as its documentation says so; the rest it says itself
/// when a plan is made. All reasons against the problem, those of semantics §13 in its words, in
/// the order of their rows; `missing` are those of the library. Limits of cuDNN 9.13 to 9.19 by its
/// frontend's documentation of attention and, where it says nothing, by what was seen on an H200.
std::vector<std::string> cudnn_refusals(const Problem& problem, const DeviceFacts& device,
                                        const std::vector<std::string>& missing);

}  // namespace attnbench
