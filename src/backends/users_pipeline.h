// What a pipeline with a user's kernel in it can do for the checks that only those get.
#pragma once

#include "backends/backend.h"

namespace attnbench {

class UsersPipeline {
 public:
  virtual ~UsersPipeline() = default;
  /// Flips the sign of inputs so that every output is negated and no LSE changes. Twice changes
  /// nothing.
  virtual void negate_inputs() = 0;
  /// The same of the query only, or whatever else makes most outputs others.
  virtual void negate_query() = 0;
  /// What negate_query() and negate_inputs() do, for the reasons against a kernel.
  struct Words {
    const char* other;
    const char* negated;
  };
  virtual Words words() const = 0;
  /// Makes the output of a run on negated inputs that of the inputs as they were.
  virtual void negate_output(PipelineOutput& output) const = 0;
  /// Destroys what the kernel prepared; nothing may run afterwards. Errors: BackendFailure.
  virtual void finish() = 0;
};

}  // namespace attnbench
