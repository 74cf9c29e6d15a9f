#include "cli/cases/refusals.h"

#include <fmt/format.h>

#include <algorithm>
#include <chrono>
#include <exception>

#include "backends/backend.h"
#include "bench/process/child_process.h"
#include "cli/cases/kernel_specs.h"
#include "core/error.h"
#include "ops/cuda/recording_ops.h"
#include "plugin/plugin_call.h"

namespace attnbench {
namespace {

using Reasons = std::vector<std::string>;
using SteadyClock = std::chrono::steady_clock;

constexpr char kReason = 'R';
constexpr char kDone = 'D';      // the reasons of a pair are complete
constexpr char kFailed = 'F';    // what() of an exception
constexpr double kLimitS = 300;  // of silence: Python packages of gigabytes take minutes to import

/// What the child does: sends the reasons of each pair and then a mark, so that the parent knows at
/// which pair a child that dies has been. Standard output is the parent's.
void answer(const std::vector<const Pair*>& pairs, const DeviceChoice& device, ParentLink& link) {
  send_stdout_to_stderr();
  for (const Pair* pair : pairs) {
    try {
      for (const std::string& reason : pair->backend->refusals(*pair->problem, device.facts)) {
        link.send(kReason, reason);
      }
      link.send(kDone, "");
    } catch (const std::exception& error) {
      link.send(kFailed, error.what());
    }
  }
}

/// An error that names the pair: the user has to find the bug in the library.
[[noreturn]] void fail_at(const Pair& pair, const std::string& how) {
  fail(ErrorKind::kInternal, "{}: asking the plugin ended a process: {}", pair.id, how);
}

/// Reads what the child sends, for all pairs in order.
std::vector<Reasons> answers(const std::vector<const Pair*>& pairs, const DeviceChoice& device) {
  std::vector<Reasons> all;
  if (pairs.empty()) return all;
  ChildProcess child([&](ParentLink& link) { answer(pairs, device, link); });
  Reasons reasons;
  auto heard = SteadyClock::now();
  while (all.size() < pairs.size()) {
    constexpr int kPollMs = 50;
    Message message;
    const ChildProcess::Read read = child.read(message, kPollMs);
    const Pair& pair = *pairs[all.size()];
    if (read == ChildProcess::Read::kEnded) {
      const std::string how = child.how_it_ended();
      fail_at(pair, how.empty() ? "exit status 0" : how);
    }
    if (read == ChildProcess::Read::kNothingYet) {
      if (std::chrono::duration<double>(SteadyClock::now() - heard).count() < kLimitS) continue;
      fail_at(pair, fmt::format("no end after {:.0f} s", kLimitS));
    }
    heard = SteadyClock::now();
    if (message.kind == kFailed) throw BackendFailure(message.text);
    if (message.kind == kReason) reasons.push_back(std::move(message.text));
    if (message.kind == kDone) all.push_back(std::move(reasons));
    if (message.kind == kDone) reasons.clear();
  }
  return all;
}

}  // namespace

std::vector<std::string> device_refusals(const Problem& problem, const DeviceChoice& device) {
  std::vector<std::string> reasons = device.refusals;
  // Why not for a device that cannot be used: its own reasons say all that helps.
  if (!device.is_cuda() || !reasons.empty()) return reasons;
  for (std::string& what : cuda_lacks(problem, target_of(device))) {
    reasons.push_back(std::move(what));
  }
  return reasons;
}

std::vector<std::string> device_refusals(const Backend& backend, const Problem& problem,
                                         const DeviceChoice& device) {
  // What this program has no kernel for, a plugin may have one for.
  if (backend.plugin() != nullptr) return device.refusals;
  std::vector<std::string> reasons = device_refusals(problem, device);
  // A forced kernel is judged by planning the case, which needs a case that the backend takes.
  const bool may_plan = device.is_cuda() && reasons.empty() && !backend.forced_kernel().empty() &&
                        backend.refusals(problem, device.facts).empty();
  return may_plan ? kernel_refusals(problem, backend, target_of(device)) : reasons;
}

std::vector<std::string> all_refusals(const Backend& backend, const Problem& problem,
                                      const DeviceChoice& device) {
  std::vector<std::string> reasons = device_refusals(backend, problem, device);
  for (std::string& reason : backend.refusals(problem, device.facts)) {
    reasons.push_back(std::move(reason));
  }
  return reasons;
}

std::vector<Reasons> all_refusals(const std::vector<Pair>& pairs, const DeviceChoice& device) {
  std::vector<const Pair*> of_plugins;
  for (const Pair& pair : pairs) {
    if (pair.backend->is_users()) of_plugins.push_back(&pair);
  }
  std::vector<Reasons> theirs = answers(of_plugins, device);
  std::vector<Reasons> all;
  std::size_t next = 0;
  for (const Pair& pair : pairs) {
    if (!pair.backend->is_users()) {
      all.push_back(all_refusals(*pair.backend, *pair.problem, device));
      continue;
    }
    all.push_back(device_refusals(*pair.backend, *pair.problem, device));
    for (std::string& reason : theirs[next]) all.back().push_back(std::move(reason));
    ++next;
  }
  return all;
}

std::vector<SharedRefusal> shared_refusals(const std::vector<std::vector<std::string>>& refusals) {
  std::vector<SharedRefusal> shared;
  for (std::size_t place = 0; place < refusals.size(); ++place) {
    for (const std::string& reason : refusals[place]) {
      auto known = std::ranges::find(shared, reason, &SharedRefusal::reason);
      if (known == shared.end()) known = shared.insert(known, {reason, {}});
      known->places.push_back(place);
    }
  }
  return shared;
}

}  // namespace attnbench
