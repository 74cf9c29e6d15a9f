#include "bench/judge/op_expect.h"

#include "bench/judge/op_expect_cache.h"
#include "bench/judge/op_expect_partial.h"
#include "bench/judge/op_expect_quant.h"

namespace attnbench {
namespace {

OpExpectations expect(const Problem& problem, const OpInputs& inputs,
                      const PipelineOutput* output) {
  const bool mla = problem.op.mla;
  switch (*problem.op.name) {
    case OpKind::kReshapeAndCache:
      return mla ? expect_mla_cache_write(inputs) : expect_cache_write(inputs);
    case OpKind::kMerge:
      return expect_merge(problem, inputs);
    case OpKind::kGather:
      return expect_gather(problem, inputs);
    case OpKind::kRope:
    case OpKind::kRopeAndCache:
      return mla ? expect_mla_rope(problem, inputs, output) : expect_rope(problem, inputs, output);
    case OpKind::kQuantize:
      return expect_quantize(problem, inputs);
    case OpKind::kDcpCorrect:
      return expect_dcp_correct(problem, inputs);
    case OpKind::kOutputQuant:
      return expect_output_quant(problem, inputs);
    case OpKind::kMmQuant:
      break;
  }
  return expect_mm_quant(problem, inputs);
}

}  // namespace

OpExpectations expect_op(const Problem& problem, const OpInputs& inputs,
                         const PipelineOutput* output) {
  OpExpectations expected = expect(problem, inputs, output);
  expected.num_tokens = problem.num_tokens();
  return expected;
}

std::string op_output_name(const Problem& problem) {
  if (problem.op.name == OpKind::kReshapeAndCache) return "kv_cache";
  return problem.op.name == OpKind::kMmQuant ? "query_codes" : "output";
}

}  // namespace attnbench
