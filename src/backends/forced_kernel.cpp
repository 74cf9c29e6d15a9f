// Forcing is a state of Ops that is set around prepare() and around every step, and cleared behind
// it: the pipelines inside know nothing of it, and no operation of theirs can escape it.
#include "backends/forced_kernel.h"

#include <fmt/format.h>

#include <map>
#include <string>
#include <utility>

#include "backends/forwarding_backend.h"

namespace attnbench {
namespace {

/// Holds `ops` to a kernel as long as it lives. Why not once for all: backends that are compared in
/// turns share one Ops.
class KernelScope {
 public:
  KernelScope(Ops& ops, std::string_view kernel) : ops_(ops) { ops_.force_kernel(kernel); }
  ~KernelScope() { ops_.force_kernel({}); }
  KernelScope(const KernelScope&) = delete;
  KernelScope& operator=(const KernelScope&) = delete;

 private:
  Ops& ops_;
};

/// Copies the steps of `inner` with the scope around each. `ops` and `kernel`, a member of the
/// backend, outlive it.
class ForcedPipeline final : public Pipeline {
 public:
  ForcedPipeline(std::unique_ptr<Pipeline> inner, Ops& ops, const std::string& kernel)
      : inner_(std::move(inner)), steps_(inner_->steps()) {
    for (Step& step : steps_) {
      step.run = [&ops, &kernel, run = std::move(step.run)] {
        const KernelScope scope(ops, kernel);
        run();
      };
    }
  }
  const std::vector<Step>& steps() const override { return steps_; }
  void poison_outputs() override { inner_->poison_outputs(); }
  PipelineOutput read_output(bool with_cache) override { return inner_->read_output(with_cache); }
  Facts facts() const override { return inner_->facts(); }

 private:
  std::unique_ptr<Pipeline> inner_;
  std::vector<Step> steps_;
};

/// Never runs by default: it is there only where a command names it. Its reasons are those of the
/// backend and one more, so that a forced kernel is refused for the same cases.
class ForcedBackend final : public ForwardingBackend {
 public:
  ForcedBackend(const Backend& backend, std::string_view kernel)
      : ForwardingBackend(backend), kernel_(kernel) {}

  bool is_default_for(AttentionType) const override { return false; }
  bool runs_by_default(const Problem&) const override { return false; }
  std::vector<std::string> refusals(const Problem& problem,
                                    const DeviceFacts& device) const override {
    if (!chooses_kernels()) {
      return {fmt::format("kernel {}: {} does not run this program's attention kernels", kernel_,
                          name())};
    }
    std::vector<std::string> reasons = inner().refusals(problem, device);
    if (!device.is_cuda) {
      reasons.push_back(fmt::format("kernel {}: the CPU has no kernels to choose from", kernel_));
    }
    return reasons;
  }
  std::unique_ptr<Pipeline> prepare(const Problem& problem, const BackendInputs& inputs,
                                    Ops& ops) const override {
    const KernelScope scope(ops, kernel_);
    return std::make_unique<ForcedPipeline>(inner().prepare(problem, inputs, ops), ops, kernel_);
  }
  std::string_view forced_kernel() const override { return kernel_; }
  const Backend& unforced() const override { return inner(); }

 private:
  std::string kernel_;
};

}  // namespace

const Backend& with_forced_kernel(const Backend& backend, std::string_view kernel) {
  // Results refer to backends by address, so a forced one is made once and never goes.
  static std::map<std::pair<const Backend*, std::string>, std::unique_ptr<Backend>> made;
  std::unique_ptr<Backend>& forced = made[{&backend, std::string(kernel)}];
  if (forced == nullptr) forced = std::make_unique<ForcedBackend>(backend, kernel);
  return *forced;
}

}  // namespace attnbench
