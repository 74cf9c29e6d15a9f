// Which kernels a case would launch, found without running anything and without a GPU: the pipeline
// is built on operations that record every launch. For `explain`, which names the kernels, and
// `compile`, which builds them.
//
// What is found here is what a run launches because it is the same code that plans it; nothing
// predicts kernels by rules of its own, which could drift.
#pragma once

#include <functional>
#include <set>
#include <string>
#include <utility>
#include <vector>

#include "backends/backend.h"
#include "jit/kernel_spec.h"
#include "ops/cuda/attention/candidates.h"
#include "ops/cuda/launcher.h"

namespace attnbench {

/// Each spec once, in the order of launches. The case is planned with inputs that have shapes and
/// no values, so that it costs the same at any size. `backend` supports the problem on `target`.
std::vector<KernelSpec> specs_of_pair(const Problem& problem, const Backend& backend,
                                      const cuda::Target& target);

/// A run of some cases also repeats one request by itself, to see whether its result is the same
/// bytes as in the batch. The kernels of that may be others than those of the batch: here they are,
/// or nothing where a run repeats no request.
std::vector<KernelSpec> specs_of_request_alone(const Problem& problem, const Backend& backend,
                                               const cuda::Target& target);

/// The kernels that screen the outputs of such a problem on a device, those of its longest requests
/// first; none where the CPU does.
std::vector<KernelSpec> specs_of_screening(const Problem& problem);

/// The kernels of any run on a device that no case asks for: what looks for writes outside of
/// buffers and, where it `times`, what is launched around samples and for ceilings.
std::vector<KernelSpec> specs_of_runs(bool times);

/// Hands on each kernel once, whatever its name, of many lists that share some.
class NewKernels {
 public:
  using Take = std::function<void(const KernelSpec& spec)>;
  explicit NewKernels(Take take) : take_(std::move(take)) {}
  void add(const std::vector<KernelSpec>& specs);

 private:
  Take take_;
  std::set<std::string> known_;  // programs and entries
};

/// How every attention operation of the case chooses its kernel, each different choice once, in the
/// order of launches. Nothing after an operation that no kernel does, or the forced one does not.
std::vector<cuda::AttendDecision> attend_decisions(const Problem& problem, const Backend& backend,
                                                   const cuda::Target& target);

/// What the case's pipeline says of itself on the target (Pipeline::facts()).
Facts planned_facts(const Problem& problem, const Backend& backend, const cuda::Target& target);
/// Puts each of `planned` in the place of the fact of its name; a name that is new behind the fact
/// before it, and the first of all in front.
void replace_facts(const Facts& planned, Facts& facts);

/// Why the kernel that the backend is held to cannot do the case; empty where it can. The backend
/// supports the problem otherwise.
std::vector<std::string> kernel_refusals(const Problem& problem, const Backend& backend,
                                         const cuda::Target& target);

}  // namespace attnbench
