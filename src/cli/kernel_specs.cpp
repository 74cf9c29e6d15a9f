#include "cli/kernel_specs.h"

#include "ops/cuda/cuda_ops.h"

namespace attnbench {

std::vector<KernelSpec> specs_of_system(System& system, const Backend& backend,
                                        const cuda::Target& target) {
  std::vector<KernelSpec> specs;
  const std::unique_ptr<Ops> ops = make_recording_ops(target, specs);
  const std::unique_ptr<Trial> trial = system.start(backend);
  const std::unique_ptr<Pipeline> pipeline = trial->prepare(*ops);
  for (const Step& step : pipeline->steps()) step.run();
  return specs;
}

std::vector<KernelSpec> specs_of_pair(const Problem& problem, const Backend& backend,
                                      const cuda::Target& target) {
  return specs_of_system(*make_system(problem, {}), backend, target);
}

}  // namespace attnbench
