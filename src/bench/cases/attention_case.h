// The case of queries, keys and values, with or without a paged cache: the attention types decoder,
// encoder, encoder_only and encoder_decoder. make_case() makes one; what its backends share are
// the AttentionValues in it.
//
// A run of a case judges in this order: the bytes that the step left in the cache, which must be
// what the rule of the backend stores (nothing beside them may have changed), then output and LSE
// against the reference on the very values that the backend reads back, then each rank of a
// context-parallel group against the keys of that rank. Where something is quantised, the error
// against the reference on nothing quantised is reported beside it and not judged: it is the price
// of the format, not of the kernel.
//
// A run can repeat one request of the batch by itself (single_request.h).
#pragma once

#include <memory>
#include <string>
#include <vector>

#include "bench/cases/attention_values.h"
#include "bench/cases/case.h"

namespace attnbench {

class AttentionCase final : public Case {
 public:
  /// `problem` must outlive the case. options: threads and the interruption of references.
  AttentionCase(const Problem& problem, const ReferenceOptions& options, const JudgeTools& tools)
      : problem_(&problem), values_(problem, options, tools) {}
  const Problem& problem() const override { return *problem_; }
  /// Keeps inputs and references where the next case differs only in how the work is done.
  bool move_on(const Problem& problem) override;
  const std::vector<std::string>& notices() override { return values_.inputs().notices; }
  std::unique_ptr<CaseRun> start(const Backend& backend) override;

 private:
  const Problem* problem_;  // as it is given; values_ have calculated scales in theirs
  AttentionValues values_;
};

}  // namespace attnbench
