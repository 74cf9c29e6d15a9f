// What a pipeline with a user's kernel in it can do for the checks that only those get. Pipelines
// of native backends have no such side: their kernels are read and tested here.
#pragma once

#include "backends/backend.h"

namespace attnbench {

/// A kernel that nobody here has read could keep an answer from its first run, compute in
/// prepare(), or skip work whose inputs look unchanged. What is timed would then not be attention.
/// So bench changes the inputs between runs and expects the output to change with them, in ways
/// that need no second reference:
///  - the first run of all has another query; a kernel that keeps what it computed there fails the
///    run that is judged;
///  - after that one, query, keys and values change their signs. Scores stay as they are, so the
///    output is the negated one, and the reference of the case judges it once more.
class UsersPipeline {
 public:
  /// Not owned by who uses it: it is a side of the Pipeline that hands it out (Pipeline::users()).
  virtual ~UsersPipeline() = default;
  /// Flips the sign of inputs so that every output is negated and no LSE changes. Twice changes
  /// nothing. Called between runs, on the host; it may wait for the device.
  virtual void negate_inputs() = 0;
  /// The same of the query only, or whatever else makes most outputs others.
  virtual void negate_query() = 0;
  /// What negate_query() and negate_inputs() do, for the reasons against a kernel.
  struct Words {
    const char* other;
    const char* negated;
  };
  /// Static text, put into the middle of a sentence of the verdict.
  virtual Words words() const = 0;
  /// Makes the output of a run on negated inputs that of the inputs as they were.
  virtual void negate_output(PipelineOutput& output) const = 0;
  /// Destroys what the kernel prepared; nothing may run afterwards. Not left to the destructor,
  /// since a
  /// kernel may fail in it, and that is a failure of the case. Errors: BackendFailure.
  virtual void finish() = 0;
};

}  // namespace attnbench
