// The case of multi-head latent attention. make_case() makes one; what its backends share are the
// MlaValues in it.
//
// Decodes and prefills of one batch go different ways (a decode stays in the latent space and may
// read a quantised cache and query, a prefill expands K and V), so which rows are decodes is part
// of what a reference is computed from. A backend splits the batch by its own capability, and the
// reference follows that split: two backends with different splits have different references, and
// both are right.
//
// A quantised output is judged twice: in 16 bits, before it is quantised, against the reference,
// and then as codes, which must be those of the backend's very own 16-bit output.
//
// The bytes that a step leaves in the cache of entries are checked before either, by themselves: a
// wrong entry of a new token may not show in the output of this step.
#pragma once

#include <memory>
#include <string>
#include <vector>

#include "bench/cases/case.h"
#include "bench/cases/mla_values.h"

namespace attnbench {

class MlaCase final : public Case {
 public:
  /// `problem` must outlive the case. options: threads and the interruption of references.
  MlaCase(const Problem& problem, const ReferenceOptions& options, const JudgeTools& tools)
      : problem_(&problem), values_(problem, options, tools) {}
  const Problem& problem() const override { return *problem_; }
  /// Keeps inputs and references where the next case differs only in how the work is done.
  bool move_on(const Problem& problem) override;
  const std::vector<std::string>& notices() override { return values_.inputs().notices; }
  std::unique_ptr<CaseRun> start(const Backend& backend) override;

 private:
  const Problem* problem_;  // as it is given; values_ have calculated scales in theirs
  MlaValues values_;
};

}  // namespace attnbench
