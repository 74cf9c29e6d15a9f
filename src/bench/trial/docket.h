// Which runs a job consists of, and whether all of them were handed in.
//
// A verdict is worth what its checks are: a job whose process never ran a check, or crashed the
// part of itself that hands outputs in, must not pass for want of evidence. So the judge keeps this
// list by what it knows of the job itself and by nothing that the other side says.
#pragma once

#include <cstdint>
#include <vector>

#include "bench/trial/job_judge.h"

namespace attnbench {

/// What the runs of a job depend on.
struct JobKind {
  bool validated = true;
  bool users = false;    // a user's kernel, which is run on other inputs as well
  bool held = false;     // runs with its stream held
  bool probed = false;   // judged on the second draw too
  bool samples = false;  // outputs of timed samples are judged, so at least one is handed in
};

class Docket {
 public:
  enum class Stage { kBeforeVerdict, kBeforeTiming, kAfterTiming };

  explicit Docket(const JobKind& kind) : kind_(kind) {}
  /// Errors: E-INTERNAL for a run that does not belong here, or was handed in before.
  void add(const Submission& what);
  /// The stage ends and the next one begins. `passing`: nothing is against the backend, so every
  /// run of the stage must be there. Errors: E-INTERNAL naming one that is not.
  void close(Stage stage, bool passing);
  Stage stage() const { return stage_; }

 private:
  bool has(RunKind run, bool probe) const;

  JobKind kind_;
  Stage stage_ = Stage::kBeforeVerdict;
  std::vector<Submission> stage_runs_;  // of this stage
};

}  // namespace attnbench
