#include "bench/stream_check.h"

#include <chrono>
#include <thread>

#include "bench/judge.h"
#include "measure/stream_gate.h"
#include "ops/cuda/cuda_ops.h"

namespace attnbench {

std::optional<PipelineOutput> run_with_stream_held(Ops& ops, Pipeline& pipeline) {
  auto* device = dynamic_cast<CudaOps*>(&ops);
  if (device == nullptr) return std::nullopt;
  // Longer than attention takes on another stream that has nothing else to do; shorter than the
  // gate stays closed by itself.
  constexpr std::chrono::milliseconds kHeadStart{100};
  ops.synchronize();
  StreamGate gate(device->runtime(), device->stream());
  gate.close();
  pipeline.poison_outputs();
  for (const Step& step : pipeline.steps()) step.run();
  std::this_thread::sleep_for(kHeadStart);
  gate.open();
  return pipeline.read_output(false);
}

std::string check_stream(Ops& ops, Pipeline& pipeline, const PipelineOutput& expected) {
  const std::optional<PipelineOutput> held = run_with_stream_held(ops, pipeline);
  if (!held) return "";
  const std::string difference = describe_difference(expected, *held);
  if (difference.empty()) return "";
  return "run() does not queue its work on the stream that it is given: with that stream held, " +
         difference;
}

}  // namespace attnbench
