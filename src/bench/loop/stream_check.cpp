// Runs a pipeline behind a closed gate on its stream; measure/stream_gate.h holds it.
#include "bench/loop/stream_check.h"

#include <chrono>
#include <thread>

#include "measure/stream_gate.h"
#include "ops/cuda/cuda_ops.h"

namespace attnbench {

namespace {

using SteadyClock = std::chrono::steady_clock;

SteadyClock::duration time_to_queue(const Pipeline& pipeline) {
  const auto start = SteadyClock::now();
  for (const Step& step : pipeline.steps()) step.run();
  return SteadyClock::now() - start;
}

/// Queues the pipeline behind a closed gate and opens it a moment later; whether that took as long
/// as the gate stays closed at most.
bool run_held(CudaOps& ops, Pipeline& pipeline) {
  // Longer than attention takes on another stream that has nothing else to do; shorter than the
  // gate stays closed by itself.
  constexpr std::chrono::milliseconds kHeadStart{100};
  ops.synchronize();
  StreamGate gate(ops.runtime(), ops.stream());
  const auto start = SteadyClock::now();
  gate.close();
  pipeline.poison_outputs();
  time_to_queue(pipeline);
  const bool took_long = SteadyClock::now() - start >= StreamGate::kLongest;
  std::this_thread::sleep_for(kHeadStart);
  gate.open();
  return took_long;
}

/// Whether run() goes on only when the gate has opened by itself: each time, though it is quick
/// where nothing is held. A host that stalls once is not accused.
bool waits(CudaOps& ops, Pipeline& pipeline) {
  ops.synchronize();
  if (time_to_queue(pipeline) >= StreamGate::kLongest / 2) return false;
  return run_held(ops, pipeline);
}

}  // namespace

std::optional<PipelineOutput> run_with_stream_held(Ops& ops, Pipeline& pipeline) {
  auto* device = dynamic_cast<CudaOps*>(&ops);
  if (device == nullptr) return std::nullopt;
  run_held(*device, pipeline);
  return pipeline.read_output(false);
}

StreamCheck check_stream(Ops& ops, Pipeline& pipeline) {
  auto* device = dynamic_cast<CudaOps*>(&ops);
  if (device == nullptr) return {};
  if (run_held(*device, pipeline) && waits(*device, pipeline)) {
    pipeline.read_output(false);
    return {"run() waits for the stream that it is given: it has to return when its work is queued",
            std::nullopt};
  }
  return {"", pipeline.read_output(false)};
}

}  // namespace attnbench
