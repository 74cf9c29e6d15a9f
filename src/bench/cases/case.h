// What the loop of the tool knows of a case: a Case holds what the backends of one problem share, a
// CaseRun is one backend's turn at it. Which family of attention it is (attention_case.h,
// mla_case.h, encoder_case.h, op_case.h) shows only in make_case().
//
// Order of use, which the classes do not check: notices() makes the inputs, start() gives a run,
// CaseRun::prepare() the pipeline; after the pipeline ran, check_stored() and judge() are given
// what it left, and add_tensors() comes last. Inputs, stored caches and references belong to the
// Case, the cache that a pipeline starts from to the CaseRun: Case outlives CaseRun outlives
// Pipeline.
#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "backends/backend.h"
#include "bench/cases/screening.h"
#include "bench/judge/blind.h"
#include "bench/judge/judge.h"
#include "core/problem/problem.h"
#include "reference/attention.h"

namespace attnbench {

class TensorList;

/// One request of a batch by itself.
struct AloneRun {
  std::int64_t request = 0;
  PipelineOutput output;
};

/// What a timed sample is worth.
struct SampleVerdict {
  bool is_judged = false;     // false: such cases have no way to
  std::int64_t request = -1;  // of the batch, by itself request 0 of the judgement; -1 = all of it
  Judgement judgement;
  std::int64_t screened_rows = 0;  // of the batch, in all heads, on a device
};

/// One backend's turn at a case. Owns what the pipeline reads, so it must outlive the pipeline.
class CaseRun {
 public:
  virtual ~CaseRun() = default;
  virtual std::unique_ptr<Pipeline> prepare(Ops& ops) = 0;
  /// What can be said without a reference, e.g. about the bytes of the cache after the step: empty,
  /// or the sentence that becomes a reason.
  virtual std::string check_stored(const PipelineOutput& output) = 0;
  /// Against the reference of the case; nothing when should_stop said so.
  virtual std::optional<Judgement> judge(const PipelineOutput& output) = 0;
  /// The output of a run on the redraw `nonce` of the inputs (inputs/redraw.h), by rows that are
  /// drawn here, where the last run of that kind must be over; nothing when should_stop said so.
  virtual std::optional<SampleVerdict> judge_sample(const PipelineOutput& output,
                                                    std::uint64_t nonce) {
    static_cast<void>(output), static_cast<void>(nonce);
    return SampleVerdict{};
  }
  /// What one request of the batch gives on its own; nothing for a batch of one, and for families
  /// where a request cannot be taken out.
  virtual std::optional<AloneRun> run_alone(Ops& ops) {
    static_cast<void>(ops);
    return std::nullopt;
  }
  /// The mistakes that judge() would let pass on the values of this case, of `candidates`, or of
  /// all that mean something for it. `output` says what is judged: types, and whether there is an
  /// LSE. Empty for families without a softmax; nothing when should_stop said so.
  virtual std::optional<std::vector<Mutant>> unseen_mistakes(
      const PipelineOutput& output, const std::optional<std::vector<Mutant>>& candidates) {
    static_cast<void>(output), static_cast<void>(candidates);
    return std::vector<Mutant>{};
  }
  /// Compares that with `in_batch`. Errors: E-INTERNAL for a request that run_alone() does not run.
  virtual BatchInvariance compare_alone(std::int64_t request, const PipelineOutput& in_batch,
                                        const PipelineOutput& alone);
  /// Adds the tensors of contract section 5. The reference is saved when judge() was called before.
  virtual void add_tensors(const PipelineOutput& output, TensorList& tensors) const = 0;
};

/// A case, with everything that its backends share, made when it is first needed.
class Case {
 public:
  virtual ~Case() = default;
  virtual const Problem& problem() const = 0;
  /// Becomes another case that has the same inputs, and references where it has those as well, and
  /// keeps them: the cases of a sweep over ranks, passes or types of the cache. False, and nothing
  /// happens, for any other problem.
  /// `problem` must outlive this object. Errors: E-CAPACITY, and nothing happens.
  virtual bool move_on(const Problem& problem) {
    static_cast<void>(problem);
    return false;
  }
  /// Makes the inputs. What the user should know about them.
  /// Errors: E-IO, E-FORMAT, E-SHAPE, E-DTYPE, E-VALUE, E-CAPACITY.
  virtual const std::vector<std::string>& notices() = 0;
  /// `backend` supports the problem. The case must outlive the run.
  virtual std::unique_ptr<CaseRun> start(const Backend& backend) = 0;
};

/// The case of attention.type. `problem` must outlive it. Errors: E-INTERNAL for a type that has
/// none.
/// `tools`: how the rows that the reference does not check are seen.
std::unique_ptr<Case> make_case(const Problem& problem, const ReferenceOptions& options,
                                const JudgeTools& tools = {});

/// Makes `current` the case of `problem`, with what the one before it has where that serves; it may
/// be empty before. Errors: those of make_case() and Case::move_on().
Case& go_to_case(std::unique_ptr<Case>& current, const Problem& problem,
                 const ReferenceOptions& options, const JudgeTools& tools = {});

/// Whether two cases have the same inputs, stored caches and reference results: they differ at most
/// in how the work is done (ranks of a group, cascade.mode, blocks of the cache) and in timing.
bool same_values(const Problem& a, const Problem& b);

/// Whether two cases of queries, keys and values draw the same numbers: they differ at most in
/// those things, and in the type and the scales that the cache stores them with.
bool same_drawn_inputs(const Problem& a, const Problem& b);

/// Whether each rank of a group holds the same keys as well.
bool same_ranks(const Problem& a, const Problem& b);

}  // namespace attnbench
