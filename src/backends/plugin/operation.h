// What a plugin's single operation works on: operands that it is given, values that change for the
// checks of users' kernels, and the way back to the output that the case expects. A new operation
// for plugins is a class here, a bit in attnbench_backend.h and a row in plugin/problem.cpp.
#pragma once

#include <memory>
#include <vector>

#include "backends/op/pipeline.h"
#include "backends/plugin/kernel.h"
#include "backends/users_pipeline.h"

namespace attnbench {

/// Values of the operands.
enum class OperandValues {
  kOwn,     // of the case
  kOther,   // for which most results are others
  kNegated  // for which restore() makes the results of the case of what they give; the case's own
            // where no values are known for which it could
};

class PluginOperation {
 public:
  virtual ~PluginOperation() = default;
  /// Values that are computed from, not metadata: they hold poison in prepare().
  virtual std::vector<PluginKernel::Input> values() const = 0;
  /// Brings such values to the device. Called between runs, with any order of values; every call
  /// replaces all of them.
  virtual void upload(OperandValues values) = 0;
  /// Output and LSE of a run, ours in form, on kNegated values.
  virtual void restore(PipelineOutput& output) const = 0;
  virtual UsersPipeline::Words words() const = 0;
};

/// Each uploads operands through `op` and describes them to `kernel`; both outlive it. The problem
/// has no reason of operation_refusals() against it.
std::unique_ptr<PluginOperation> plugin_cache_write(OpPipeline& op, PluginKernel& kernel);
std::unique_ptr<PluginOperation> plugin_merge(OpPipeline& op, PluginKernel& kernel);
/// All others, with their operands by name. Queues the steps of the native operation with `kernel`
/// in place of the one that counts.
std::unique_ptr<PluginOperation> plugin_named(OpPipeline& op, PluginKernel& kernel);

}  // namespace attnbench
