// A pipeline with one step more. On the CPU the fault is the thread's own: sleep without end,
// SIGSEGV, or a byte behind the end of a buffer, where its guard zone lies.
#include "bench/loop/planted_fault.h"

#include <fmt/format.h>

#include <chrono>
#include <csignal>
#include <cstdlib>
#include <string_view>
#include <thread>
#include <utility>

#include "backends/sample_side.h"
#include "core/error.h"
#include "ops/cuda/cuda_ops.h"

namespace attnbench {
namespace {

constexpr std::size_t kPlantedBytes = 4096;

void fault_on_cpu(cuda::Fault fault, Buffer& buffer) {
  switch (fault) {
    case cuda::Fault::kHang:
      for (;;) std::this_thread::sleep_for(std::chrono::hours(1));
    case cuda::Fault::kCrash:
      std::raise(SIGSEGV);
      return;
    case cuda::Fault::kOverrun:
      buffer.as<char>()[buffer.size_bytes()] = 0;
      return;
    case cuda::Fault::kExit:
      std::_Exit(3);
  }
}

class FaultyPipeline final : public Pipeline {
 public:
  FaultyPipeline(std::unique_ptr<Pipeline> pipeline, Ops& ops, cuda::Fault fault,
                 const FaultPlace& place)
      : pipeline_(std::move(pipeline)),
        buffer_(ops.allocate(kPlantedBytes, "planted buffer")),
        device_(dynamic_cast<CudaOps*>(&ops)),
        fault_(fault),
        place_(place),
        steps_(pipeline_->steps()) {
    if (place_.phase.empty()) {
      steps_.push_back(side_step("planted fault", [this] { fail_in(""); }));
      return;
    }
    check_phase();
    for (Step& step : steps_) {
      if (step.name != place_.phase) continue;
      step.run = [this, run = step.run] {
        fail_in(place_.phase);
        run();
      };
    }
  }
  const std::vector<Step>& steps() const override { return steps_; }
  void poison_outputs() override { pipeline_->poison_outputs(); }
  PipelineOutput read_output(bool with_cache) override {
    fail_in(kReading);
    return pipeline_->read_output(with_cache);
  }
  UsersPipeline* users() override { return pipeline_->users(); }
  std::optional<SampleSide> sample_side() override { return pipeline_->sample_side(); }

 private:
  void fail_in(std::string_view phase) {
    if (!place_.is_here || place_.phase != phase) return;
    if (device_ == nullptr || fault_ == cuda::Fault::kExit) return fault_on_cpu(fault_, *buffer_);
    cuda::launch_fault(device_->launcher(), fault_, *buffer_);
  }

  void check_phase() const {
    std::string known = fmt::format("{}, {}", kPreparing, kReading);
    for (const Step& step : steps_) {
      if (step.name == place_.phase) return;
      known += ", " + step.name;
    }
    if (place_.phase == kPreparing || place_.phase == kReading) return;
    fail(ErrorKind::kUsage, "--plant-fault: no phase '{}'; the case has {}", place_.phase, known);
  }

  std::unique_ptr<Pipeline> pipeline_;
  std::unique_ptr<Buffer> buffer_;
  CudaOps* device_;
  cuda::Fault fault_;
  FaultPlace place_;
  std::vector<Step> steps_;
};

}  // namespace

std::unique_ptr<Pipeline> FaultyBackend::prepare(const Problem& problem,
                                                 const BackendInputs& inputs, Ops& ops) const {
  if (place_.is_here && place_.phase == kPreparing) {
    const std::unique_ptr<Buffer> buffer = ops.allocate(kPlantedBytes, "planted buffer");
    fault_on_cpu(fault_, *buffer);
  }
  return std::make_unique<FaultyPipeline>(inner().prepare(problem, inputs, ops), ops, fault_,
                                          place_);
}

}  // namespace attnbench
