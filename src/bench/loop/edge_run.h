// Runs a pipeline with every buffer at the edge of a mapping of its own, so that a read or a write
// past its end, or before its start, is a fault and not somebody else's value: one key behind the
// last is seen, whatever it does to the output. Guard zones (core/system/guard_zone.h) see writes
// only, and reads that matter.
//
// On the CPU buffers end at the end of a mapping in every run (core/system/fenced_memory.h), so
// that only their starts are left to look at. On a GPU a fault ends the context, and mappings are
// of whole granules, so that both ends are looked at in runs of their own.
#pragma once

#include <functional>
#include <string>
#include <vector>

#include "bench/cases/case.h"

namespace attnbench {

class Ops;

/// A run whose buffers stood elsewhere than usual.
struct EdgeOutput {
  /// The beginning of a sentence: "with its buffers at the ends of their mappings".
  std::string when;
  /// Of the last run there, without the cache; to be judged like any other.
  PipelineOutput output;
};

/// Prepares `case_run` again for each placement that `ops` has beside its usual one, and runs it.
/// On a device, where a fault does not say of which buffer it is, what lies beyond a buffer is
/// taken away of one buffer at a time, and the run repeated for each; of all at once where that
/// would take long. Leaves `ops` placing buffers as usual. `notice` hears of a placement that was
/// left out because memory is short.
///
/// Errors: those of a step; E-INTERNAL and E-CUDA name the buffer: "reads or writes past the end of
/// 'key'". After one of a device, the device is lost to this process.
std::vector<EdgeOutput> run_at_edges(CaseRun& case_run, Ops& ops,
                                     const std::function<void(const std::string&)>& notice);

}  // namespace attnbench
