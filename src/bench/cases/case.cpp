// The only place where the type of attention chooses the code that serves it.
#include "bench/cases/case.h"

#include <string>
#include <utility>

#include "bench/cases/attention_case.h"
#include "bench/cases/encoder_case.h"
#include "bench/cases/mla_case.h"
#include "bench/cases/op_case.h"
#include "core/error.h"
#include "core/problem/fields.h"
#include "inputs/cache/kv_scales.h"

namespace attnbench {
namespace {

/// The problem with one value for everything that no input and no reference depends on.
std::string values_of(Problem problem) {
  problem.case_name.clear();
  problem.dcp = {};
  problem.cascade.mode = CascadeMode::kAuto;
  problem.attention.num_splits.reset();
  problem.engine = {};
  problem.kv_cache.num_blocks = 0;
  problem.timing = {};
  return problem_to_json(problem);
}

}  // namespace

BatchInvariance CaseRun::compare_alone(std::int64_t request, const PipelineOutput&,
                                       const PipelineOutput&) {
  fail(ErrorKind::kInternal, "request {} is not run by itself", request);
}

std::unique_ptr<Case> make_case(const Problem& problem, const ReferenceOptions& options,
                                const JudgeTools& tools) {
  switch (problem.attention.type) {
    case AttentionType::kDecoder:
    case AttentionType::kEncoder:
    case AttentionType::kEncoderOnly:
    case AttentionType::kEncoderDecoder:
      return std::make_unique<AttentionCase>(problem, options, tools);
    case AttentionType::kMla:
      return std::make_unique<MlaCase>(problem, options, tools);
    case AttentionType::kMmEncoder:
      return std::make_unique<EncoderCase>(problem, options, tools);
    case AttentionType::kOp:
      return std::make_unique<OpCase>(problem);
  }
  fail(ErrorKind::kInternal, "attention.type {}: no system serves it",
       to_string(problem.attention.type));
}

Case& go_to_case(std::unique_ptr<Case>& current, const Problem& problem,
                 const ReferenceOptions& options, const JudgeTools& tools) {
  if (current && &current->problem() == &problem) return *current;
  if (!current || !current->move_on(problem)) {
    current.reset();  // free the old case's tensors before the new ones are made
    current = make_case(problem, options, tools);
  }
  return *current;
}

bool same_values(const Problem& a, const Problem& b) {
  // Calculated scales are written into the problem, so that the next case does not have them yet.
  if (calculates_kv_scales(a) || calculates_kv_scales(b)) return false;
  if (a.inputs.shapes_only != b.inputs.shapes_only) return false;
  return values_of(a) == values_of(b);
}

bool same_drawn_inputs(const Problem& a, const Problem& b) {
  if (calculates_kv_scales(a) || calculates_kv_scales(b)) return false;
  if (a.inputs.shapes_only != b.inputs.shapes_only) return false;
  const auto without_store = [](Problem problem) {
    const KvCacheSpec defaults;
    problem.kv_cache.dtype = defaults.dtype;
    problem.kv_cache.q_scale = defaults.q_scale;
    problem.kv_cache.k_scale = defaults.k_scale;
    problem.kv_cache.v_scale = defaults.v_scale;
    return values_of(std::move(problem));
  };
  return without_store(a) == without_store(b);
}

bool same_ranks(const Problem& a, const Problem& b) {
  return a.dcp.world_size == b.dcp.world_size && a.dcp.interleave_size == b.dcp.interleave_size;
}

}  // namespace attnbench
