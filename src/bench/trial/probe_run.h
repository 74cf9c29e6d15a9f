// The second draw of a job: a backend is prepared once more on the values of the probe
// (bench/cases/probe.h), runs, is judged, and its pipeline is gone before anything is timed.
//
// The probe comes before the pipeline that is timed, so one pipeline of a backend lives at a time.
// Inputs and references of the probe are kept for the next backend of the case while both draws
// fit into a part of the machine's memory.
#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "backends/backend.h"
#include "bench/cases/case.h"
#include "core/problem/problem.h"
#include "core/result/result.h"
#include "reference/attention.h"

namespace attnbench {

/// Whether a job is judged on the second draw: attention with some rows, of which this machine's
/// memory holds the values twice.
bool is_probed(const Problem& problem);

/// What the probe showed; what becomes of it in the result is add_to()'s.
struct ProbeVerdict {
  std::optional<ErrorStats> error;
  std::optional<ErrorStats> lse_error;
  std::vector<std::string> reasons;  // beginning with "probe: "
  std::vector<Mutant> unseen;        // mistakes that the rule would let pass on the probe

  /// Adds errors and reasons, behind those that are there.
  void add_to(Result& result) const;
};

/// Judges a run on the probe; nothing when should_stop said so. Takes plain values, so it may be
/// called where the pipeline is not.
std::optional<ProbeVerdict> judge_probe(CaseRun& case_run, const PipelineOutput& output);

/// Result::blind_to of a case: what was not seen on the probe and would not be seen on the
/// scenario's values either. `case_run` and `output` are those of the scenario's draw. Nothing when
/// should_stop said so.
std::optional<std::vector<std::string>> find_blind_spots(CaseRun& case_run,
                                                         const PipelineOutput& output,
                                                         const ProbeVerdict& probe);

/// Result::blind_to as it can be told before a run: of an output in the attention dtype (or the
/// type of a fused quantisation) without an LSE, which would show more. Nothing for cases that are
/// too large to look at in passing (64 MiB of inputs), for operations and for users' backends.
std::optional<std::vector<std::string>> predicted_blind_spots(const Problem& problem,
                                                              const Backend& backend);

/// Keeps the inputs and references of the probe from one backend of a case to the next.
class ProbeCases {
 public:
  /// One backend's turn at the probe of `problem`; valid until the next call of start() or
  /// release(). Errors: as Case::notices().
  std::unique_ptr<CaseRun> start(const Problem& problem, const Backend& backend,
                                 const ReferenceOptions& options, const JudgeTools& tools = {});
  /// Forgets the case where both draws take too much of the machine's memory for others beside
  /// them.
  void release_if_large();

 private:
  const Problem* of_ = nullptr;       // whose probe it is
  std::unique_ptr<Problem> problem_;  // of the probe
  std::unique_ptr<Case> case_;
};

/// The probe of one job, made when it is first wanted: by the loop, which runs the backend on it,
/// or by the judge. What is passed by reference outlives it.
class JobProbe {
 public:
  JobProbe(ProbeCases& cases, const Problem& problem, const Backend& backend,
           ReferenceOptions options, JudgeTools tools)
      : cases_(cases),
        problem_(problem),
        backend_(backend),
        options_(std::move(options)),
        tools_(std::move(tools)) {}

  CaseRun& case_run() {
    if (!case_run_) case_run_ = cases_.start(problem_, backend_, options_, tools_);
    return *case_run_;
  }
  /// Nobody wants it any more.
  void release() {
    case_run_.reset();
    cases_.release_if_large();
  }

 private:
  ProbeCases& cases_;
  const Problem& problem_;
  const Backend& backend_;
  ReferenceOptions options_;
  JudgeTools tools_;
  std::unique_ptr<CaseRun> case_run_;
};

}  // namespace attnbench
