// How the pipelines of plugins' single operations call Ops, which a run on the CPU does not
// show.
#include <doctest/doctest.h>

#include <cstring>

#include "backends/plugin/op_pipeline.h"
#include "bench/cases/op_inputs.h"
#include "ops/forwarding_ops.h"

namespace attnbench {
namespace {

class UploadCounter final : public ForwardingOps {
 public:
  using ForwardingOps::ForwardingOps;
  void upload(Buffer& destination, const void* source, std::size_t size_bytes) override {
    ++uploads;
    inner().upload(destination, source, size_bytes);
  }
  int uploads = 0;
};

const char* prepare(const AttnbenchBackend*, const AttnbenchProblem*,
                    const AttnbenchTensors* tensors, const AttnbenchHost*, void** state) {
  *state = const_cast<AttnbenchTensors*>(tensors);
  return nullptr;
}

/// Spoils what the operation writes.
const char* run(void* state, void*) {
  const auto& t = *static_cast<const AttnbenchTensors*>(state);
  std::memset(t.key_cache != nullptr ? t.key_cache->data : t.output->data, 7, 100);
  return nullptr;
}

Problem op_problem(OpKind op) {
  Problem problem;
  AttentionSpec& a = problem.attention;
  a.type = AttentionType::kOp;
  a.num_heads = 4;
  a.num_kv_heads = 2;
  a.head_size = a.v_head_size = 16;
  problem.kv_cache.num_blocks = 8;
  problem.batch = {{1, 20}, {1, 17}, {4, 4}};
  problem.op.name = op;
  return problem;
}

}  // namespace

TEST_CASE("outputs of a plugin's operation are put back without a copy that waits for the stream") {
  for (const OpKind op : {OpKind::kReshapeAndCache, OpKind::kMerge}) {
    Problem problem = op_problem(op);
    if (op == OpKind::kReshapeAndCache) problem.op.cache_layout = OpCacheLayout::kFa;
    const OpInputs inputs = make_op_inputs(problem);
    const std::unique_ptr<Ops> cpu = make_cpu_ops(1);
    UploadCounter ops(*cpu);
    AttnbenchBackend table{};
    table.name = "MINE";
    table.kv = ATTNBENCH_KV_PAGED;
    table.prepare = prepare;
    table.run = run;
    PluginTable plugin;
    plugin.self = &table;
    plugin.table = table;
    PluginOpPipeline pipeline(problem, inputs, ops, plugin, PluginDevice{});
    pipeline.poison_outputs();
    const PipelineOutput before = pipeline.read_output(false);
    for (const Step& step : pipeline.steps()) step.run();
    const PipelineOutput spoiled = pipeline.read_output(false);
    ops.uploads = 0;
    pipeline.poison_outputs();
    CHECK(ops.uploads == 0);
    const PipelineOutput after = pipeline.read_output(false);
    const std::size_t size = before.output.size_bytes();
    CHECK(std::memcmp(before.output.bytes(), spoiled.output.bytes(), size) != 0);
    CHECK(std::memcmp(before.output.bytes(), after.output.bytes(), size) == 0);
    if (op != OpKind::kReshapeAndCache) continue;
    CHECK(std::memcmp(before.output.bytes(), inputs.cache.data.bytes(), size) == 0);
  }
}

}  // namespace attnbench
