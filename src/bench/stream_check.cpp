#include "bench/stream_check.h"

#include <chrono>
#include <thread>

#include "bench/judge.h"
#include "measure/stream_gate.h"
#include "ops/cuda/cuda_ops.h"

namespace attnbench {

std::string check_stream(Ops& ops, Pipeline& pipeline, const PipelineOutput& expected) {
  auto* device = dynamic_cast<CudaOps*>(&ops);
  if (device == nullptr) return "";
  // Longer than attention takes on another stream that has nothing else to do; shorter than the
  // gate stays closed by itself.
  constexpr std::chrono::milliseconds kHeadStart{100};
  ops.synchronize();
  StreamGate gate(device->runtime(), device->stream());
  const auto start = std::chrono::steady_clock::now();
  gate.close();
  pipeline.poison_outputs();
  for (const Step& step : pipeline.steps()) step.run();
  // Who waits for the stream goes on when the gate opens by itself.
  const bool has_waited = std::chrono::steady_clock::now() - start >= StreamGate::kLongest;
  std::this_thread::sleep_for(kHeadStart);
  gate.open();
  if (has_waited) {
    pipeline.read_output(false);
    return "run() waits for the stream that it is given: it has to return when its work is queued";
  }
  const std::string difference = describe_difference(expected, pipeline.read_output(false));
  if (difference.empty()) return "";
  return "run() does not queue its work on the stream that it is given: with that stream held, " +
         difference;
}

}  // namespace attnbench
