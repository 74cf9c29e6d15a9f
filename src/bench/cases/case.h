// What a case of one family of attention is made of: inputs, one backend's turn, verdict, tensors
// to save. The loop of the tool knows nothing else about a family.
#pragma once

#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "backends/backend.h"
#include "bench/judge/judge.h"
#include "core/problem/problem.h"
#include "reference/attention.h"

namespace attnbench {

class TensorList;

/// One backend's turn at a case. Owns what the pipeline reads, so it must outlive the pipeline.
class Trial {
 public:
  virtual ~Trial() = default;
  virtual std::unique_ptr<Pipeline> prepare(Ops& ops) = 0;
  /// What can be said without a reference, e.g. about the bytes of the cache after the step: empty,
  /// or the sentence that becomes a reason.
  virtual std::string check_stored(const PipelineOutput& output) = 0;
  /// Against the reference of the case; nothing when should_stop said so.
  virtual std::optional<Judgement> judge(const PipelineOutput& output) = 0;
  /// Runs one request of the batch on its own and compares it with `output`; nothing for a batch of
  /// one, and for families where a request cannot be taken out.
  virtual std::optional<BatchInvariance> run_alone(Ops& ops, const PipelineOutput& output) {
    static_cast<void>(ops), static_cast<void>(output);
    return std::nullopt;
  }
  /// Adds the tensors of contract section 5. The reference is saved when judge() was called before.
  virtual void add_tensors(const PipelineOutput& output, TensorList& tensors) const = 0;
};

/// A case, with everything that its backends share, made when first asked for.
class System {
 public:
  virtual ~System() = default;
  virtual const Problem& problem() const = 0;
  /// Becomes the system of another case that has the same inputs and references, and keeps them:
  /// the cases of a sweep over ranks or passes. False, and nothing happens, for any other case.
  /// `problem` must outlive the system. Errors: E-CAPACITY, and nothing happens.
  virtual bool move_on(const Problem& problem) {
    static_cast<void>(problem);
    return false;
  }
  /// Makes the inputs. What the user should know about them.
  /// Errors: E-IO, E-FORMAT, E-SHAPE, E-DTYPE, E-VALUE, E-CAPACITY.
  virtual const std::vector<std::string>& notices() = 0;
  /// `backend` supports the problem. The system must outlive the trial.
  virtual std::unique_ptr<Trial> start(const Backend& backend) = 0;
};

/// The system of attention.type. `problem` must outlive it. Errors: E-INTERNAL for a type that has
/// none.
std::unique_ptr<System> make_system(const Problem& problem, const ReferenceOptions& options);

/// One a family; each lives in its own file.
std::unique_ptr<System> make_attention_system(const Problem& problem,
                                              const ReferenceOptions& options);
std::unique_ptr<System> make_mla_system(const Problem& problem, const ReferenceOptions& options);
std::unique_ptr<System> make_mm_system(const Problem& problem, const ReferenceOptions& options);
std::unique_ptr<System> make_op_system(const Problem& problem, const ReferenceOptions& options);

}  // namespace attnbench
