// A pipeline with one step more. On the CPU the fault is the thread's own: sleep without end,
// SIGSEGV, or a byte behind the end of a buffer, where its guard zone lies.
#include "bench/loop/planted_fault.h"

#include <chrono>
#include <csignal>
#include <cstdlib>
#include <thread>
#include <utility>

#include "backends/sample_side.h"
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
  FaultyPipeline(std::unique_ptr<Pipeline> pipeline, Ops& ops, cuda::Fault fault, bool is_here)
      : pipeline_(std::move(pipeline)),
        buffer_(ops.allocate(kPlantedBytes, "planted buffer")),
        steps_(pipeline_->steps()) {
    auto* device = dynamic_cast<CudaOps*>(&ops);
    steps_.push_back(side_step("planted fault", [this, device, fault, is_here] {
      if (!is_here) return;
      if (device == nullptr || fault == cuda::Fault::kExit) return fault_on_cpu(fault, *buffer_);
      cuda::launch_fault(device->launcher(), fault, *buffer_);
    }));
  }
  const std::vector<Step>& steps() const override { return steps_; }
  void poison_outputs() override { pipeline_->poison_outputs(); }
  PipelineOutput read_output(bool with_cache) override {
    return pipeline_->read_output(with_cache);
  }
  UsersPipeline* users() override { return pipeline_->users(); }
  std::optional<SampleSide> sample_side() override { return pipeline_->sample_side(); }

 private:
  std::unique_ptr<Pipeline> pipeline_;
  std::unique_ptr<Buffer> buffer_;
  std::vector<Step> steps_;
};

}  // namespace

std::unique_ptr<Pipeline> FaultyBackend::prepare(const Problem& problem,
                                                 const BackendInputs& inputs, Ops& ops) const {
  return std::make_unique<FaultyPipeline>(inner().prepare(problem, inputs, ops), ops, fault_,
                                          is_here_);
}

}  // namespace attnbench
