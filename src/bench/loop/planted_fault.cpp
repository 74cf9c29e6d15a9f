// A pipeline with one step more. On the CPU the fault is the thread's own: sleep without end,
// SIGSEGV, or a byte behind the end of a buffer, where its guard zone lies.
#include "bench/loop/planted_fault.h"

#include <chrono>
#include <csignal>
#include <thread>
#include <utility>

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
  }
}

class FaultyPipeline final : public Pipeline {
 public:
  FaultyPipeline(std::unique_ptr<Pipeline> pipeline, Ops& ops, cuda::Fault fault)
      : pipeline_(std::move(pipeline)),
        buffer_(ops.allocate(kPlantedBytes, "planted buffer")),
        steps_(pipeline_->steps()) {
    auto* device = dynamic_cast<CudaOps*>(&ops);
    steps_.push_back(side_step("planted fault", [this, device, fault] {
      if (device == nullptr) return fault_on_cpu(fault, *buffer_);
      cuda::launch_fault(device->launcher(), fault, *buffer_);
    }));
  }
  const std::vector<Step>& steps() const override { return steps_; }
  void poison_outputs() override { pipeline_->poison_outputs(); }
  PipelineOutput read_output(bool with_cache) override {
    return pipeline_->read_output(with_cache);
  }

 private:
  std::unique_ptr<Pipeline> pipeline_;
  std::unique_ptr<Buffer> buffer_;
  std::vector<Step> steps_;
};

}  // namespace

std::unique_ptr<Pipeline> FaultyBackend::prepare(const Problem& problem,
                                                 const BackendInputs& inputs, Ops& ops) const {
  return std::make_unique<FaultyPipeline>(inner().prepare(problem, inputs, ops), ops, fault_);
}

}  // namespace attnbench
