// A device names the buffer of a fault by which edges were closed (Ops::close_edges).
#include "bench/loop/edge_run.h"

#include <fmt/format.h>

#include <memory>
#include <utility>

#include "backends/users_pipeline.h"
#include "core/error.h"
#include "core/system/clock.h"
#include "ops/ops.h"

namespace attnbench {
namespace {

/// Runs of one buffer each may take so long together.
constexpr double kSecondsForNames = 2;
/// No buffer has this name: none is closed.
constexpr const char* kNone = "(none)";

struct Edge {
  Placement placement;
  const char* when;
};
constexpr Edge kEdges[] = {
    {Placement::kAtEnd, "with its buffers at the ends of their mappings"},
    {Placement::kAtStart, "with its buffers at the starts of their mappings"},
};

/// Buffers are placed as usual again when it ends.
class Placed {
 public:
  Placed(Ops& ops, Placement placement) : ops_(ops), differs_(ops.place_buffers(placement)) {}
  ~Placed() { ops_.place_buffers(Placement::kUsual); }
  Placed(const Placed&) = delete;
  Placed& operator=(const Placed&) = delete;
  bool differs() const { return differs_; }

 private:
  Ops& ops_;
  bool differs_;
};

void run_steps(Pipeline& pipeline, Ops& ops) {
  pipeline.poison_outputs();
  for (const Step& step : pipeline.steps()) {
    step.run();
    ops.synchronize();
  }
}

void run_each(Pipeline& pipeline, Ops& ops) {
  const std::vector<std::string> names = ops.edges();
  if (names.empty()) return run_steps(pipeline, ops);
  // First with all of them open: what faults then is nowhere near a buffer.
  ops.close_edges(kNone);
  const double start_s = steady_clock().now_s();
  run_steps(pipeline, ops);
  const double run_s = steady_clock().now_s() - start_s;
  if (run_s * static_cast<double>(names.size()) > kSecondsForNames) {
    ops.close_edges("");
    return run_steps(pipeline, ops);
  }
  for (const std::string& name : names) {
    ops.close_edges(name);
    run_steps(pipeline, ops);
  }
}

EdgeOutput run_at(const Edge& edge, CaseRun& case_run, Ops& ops) {
  const std::unique_ptr<Pipeline> pipeline = case_run.prepare(ops);
  run_each(*pipeline, ops);
  EdgeOutput result{edge.when, pipeline->read_output(false)};
  if (UsersPipeline* users = pipeline->users()) users->finish();
  return result;
}

}  // namespace

std::vector<EdgeOutput> run_at_edges(CaseRun& case_run, Ops& ops,
                                     const std::function<void(const std::string&)>& notice) {
  std::vector<EdgeOutput> outputs;
  for (const Edge& edge : kEdges) {
    const Placed placed(ops, edge.placement);
    if (!placed.differs()) continue;
    try {
      outputs.push_back(run_at(edge, case_run, ops));
    } catch (const Error& error) {
      if (error.kind() != ErrorKind::kCapacity) throw;
      notice(fmt::format("not run {}: {}", edge.when, error.what()));
    }
  }
  return outputs;
}

}  // namespace attnbench
