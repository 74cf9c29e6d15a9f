// Whether a plugin queues its work on the stream that it is given, and does not wait for it.
//
// Both matter for what is measured. Work on another stream is not between the events that time it,
// so its time would not be seen; a run() that waits cannot be captured in a graph, and shows the
// host's time as the kernel's.
//
// Both are found by holding the stream: a gate closed on it keeps everything that is queued from
// starting. Poison is queued first, then the plugin runs. Work on the same stream comes after the
// poison, however long the gate is closed; work on another stream is done before and is
// overwritten, which shows as a difference. A run() that returns only when the gate has opened by
// itself waits for the stream.
//
// Work on another stream that is still going on when the gate opens escapes; the head start that
// other streams get is longer than attention takes.
#pragma once

#include <optional>
#include <string>

#include "backends/backend.h"

namespace attnbench {

/// What `pipeline` gives when its stream is held while it runs: work on another stream comes before
/// the poison that was queued on this one, and is lost. Nothing on the CPU.
std::optional<PipelineOutput> run_with_stream_held(Ops& ops, Pipeline& pipeline);

/// A run with its stream held: what it gave, or what is wrong with how it ran.
struct StreamCheck {
  std::string objection;
  std::optional<PipelineOutput> output;
};

/// Runs `pipeline` once more with its stream held, so that work on the stream comes after poison
/// that was queued before it, and work on another stream comes before. The output is to be that of
/// its other runs, bit by bit. Nothing of both on the CPU. A host that is slow once is not taken
/// for one that waits. Device errors are thrown.
StreamCheck check_stream(Ops& ops, Pipeline& pipeline);

}  // namespace attnbench
