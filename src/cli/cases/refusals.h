// Why cases cannot run where the user wants them: reasons of the device, of the kernels that this
// program has, and of the backend. No reason means that the case can run.
//
// All reasons are collected, not only the first, because a user who removes one obstacle should not
// meet the next one an hour later. They are sentences for people and part of result files. Code of
// a user's backend may crash or hang, so a list of pairs is judged in a child process. The order is
// device first: who has no GPU should read that and not the fine print of a kernel.
#pragma once

#include <cstddef>
#include <string>
#include <vector>

#include "backends/backend.h"
#include "cli/cases/device.h"
#include "cli/cases/selection.h"

namespace attnbench {

/// Every reason against one pair: that the device cannot be used, that this program has no kernel
/// for the case there, and what the backend itself says. A user's backend is called in this
/// process, so this is for processes that may crash.
/// The texts are those of semantics §13 where it has words for the reason.
std::vector<std::string> all_refusals(const Backend& backend, const Problem& problem,
                                      const DeviceChoice& device);
/// Those of all_refusals() that are not the backend's own, for callers that must not run a user's
/// code, or that want to say apart what another machine could do.
std::vector<std::string> device_refusals(const Backend& backend, const Problem& problem,
                                         const DeviceChoice& device);
/// The same for a backend whose kernels are this program's, whichever it is: what is said before a
/// backend is chosen.
std::vector<std::string> device_refusals(const Problem& problem, const DeviceChoice& device);

/// The same for every pair of a run: every reason against each, in their order. All users' backends
/// are questioned by one child process, which may crash, hang, start threads and touch a device.
/// Errors: E-INTERNAL naming the pair at which that process ended; BackendFailure with the words of
/// a supports() that throws.
std::vector<std::vector<std::string>> all_refusals(const std::vector<Pair>& pairs,
                                                   const DeviceChoice& device);

/// A reason, and the places of all that have it.
struct SharedRefusal {
  std::string reason;
  std::vector<std::size_t> places;
};
/// Every reason once, by first appearance: a user reads it once, whatever it refuses.
std::vector<SharedRefusal> shared_refusals(const std::vector<std::vector<std::string>>& refusals);

}  // namespace attnbench
