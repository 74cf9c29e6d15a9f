#include "cli/cases/kernel_specs.h"

#include "bench/cases/case.h"
#include "bench/loop/alone.h"
#include "ops/cuda/cuda_ops.h"

namespace attnbench {

std::vector<KernelSpec> specs_of_pair(const Problem& problem, const Backend& backend,
                                      const cuda::Target& target) {
  Problem planned = problem;
  planned.inputs.shapes_only = true;
  std::vector<KernelSpec> specs;
  const std::unique_ptr<Ops> ops = make_recording_ops(target, specs);
  const std::unique_ptr<System> system = make_system(planned, {});
  const std::unique_ptr<Trial> trial = system->start(backend);
  const std::unique_ptr<Pipeline> pipeline = trial->prepare(*ops);
  for (const Step& step : pipeline->steps()) step.run();  // records, launches nothing
  return specs;
}

std::vector<KernelSpec> specs_of_request_alone(const Problem& problem, const Backend& backend,
                                               const cuda::Target& target) {
  const AttentionType type = problem.attention.type;
  const bool repeats = type != AttentionType::kMla && type != AttentionType::kMmEncoder &&
                       type != AttentionType::kOp;
  const std::optional<std::int64_t> request = repeats ? request_to_repeat(problem) : std::nullopt;
  if (!request) return {};
  Problem alone = problem_of_request(problem, *request);
  alone.inputs.file.reset();  // it has the tensors of the whole batch
  return specs_of_pair(alone, backend, target);
}

}  // namespace attnbench
