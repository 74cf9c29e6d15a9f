// Whether a plugin queues its work on the stream that it is given, and does not wait for it:
// elsewhere its time is not seen, and who waits cannot be captured in a graph.
#pragma once

#include <optional>
#include <string>

#include "backends/backend.h"

namespace attnbench {

/// What `pipeline` gives when its stream is held while it runs: work on another stream comes before
/// the poison that was queued on this one, and is lost. Nothing on the CPU.
std::optional<PipelineOutput> run_with_stream_held(Ops& ops, Pipeline& pipeline);

/// Runs `pipeline` once more with its stream held, so that work on the stream comes after poison
/// that was queued before it, and work on another stream comes before. `expected` is what its runs
/// give. Empty, or the reason against it; always empty on the CPU, and where the device cannot hold
/// a stream. Device errors are thrown.
std::string check_stream(Ops& ops, Pipeline& pipeline, const PipelineOutput& expected);

}  // namespace attnbench
