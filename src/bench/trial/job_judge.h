// The judge of one job, as the loop that runs the backend sees it: what each run left is handed in,
// and the answer is whether to go on. Nothing else comes back, so the loop can be where the
// backend's code is and the judge where it is not (remote_judge.h); the verdict, what it is
// measured by and the result belong to the judge.
//
// The order of a job: submit() for every run before the verdict, conclude(), submit() for what
// needs the verdict, decide(); then, where it is timed, begin_timing(), timed() and submit() for
// what is checked afterwards; finish() at the end. The judge knows which runs a job of its kind
// consists of and does not pass one that leaves some out (docket.h).
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "backends/backend.h"
#include "core/enum_names.h"
#include "core/result/result.h"

namespace attnbench {

/// Which values a pipeline was given for a run.
struct Draw {
  bool probe = false;       // those of the second draw (inputs.distribution probe)
  std::uint64_t nonce = 0;  // drawn afresh from them by this nonce; 0 = as they are

  bool operator==(const Draw&) const = default;
};

inline constexpr Draw kProbeDraw{true, 0};

/// What a run was for.
enum class RunKind : std::uint8_t {
  kOtherQuery,  // before the one that is judged, of a user's kernel
  kJudged,      // whose output and cache the verdict is about
  kRepeat,      // the same once more
  kHeld,        // with its stream held
  kAlone,       // one request of the batch by itself
  kNegated,     // on negated inputs, its output negated back
  kEdge,        // with its buffers at edges of what is mapped
  kTimed,       // a timed sample
};
std::span<const EnumRow<RunKind>> enum_rows(RunKind);

struct Submission {
  RunKind run = RunKind::kJudged;
  Draw draw = {};
  std::int64_t index =
      -1;  // kAlone: the request; kEdge: its number; kTimed: as in Timing::samples_us
  /// kOtherQuery and kNegated: what was done to the inputs (UsersPipeline::words()); kEdge: where
  /// the buffers stood.
  std::string words = {};
};

/// Thrown where a job notices an interrupt, on either side; ends the job as "skipped".
struct Interrupted {};

/// Every function may throw Interrupted, and an Error that ends the job: E-INTERNAL for runs that
/// were left out or handed in twice. True as an answer: there is nothing against the backend so
/// far.
class JobJudge {
 public:
  virtual ~JobJudge() = default;
  /// `output` is what the run left, with its cache for kJudged.
  virtual bool submit(const Submission& what, PipelineOutput&& output) = 0;
  /// A reason against the backend that the loop saw itself, e.g. that run() waits for its stream.
  virtual bool object(const std::string& reason) = 0;
  /// Every run of this draw that comes before the verdict is in.
  virtual bool conclude(const Draw& draw = {}) = 0;
  /// Every run before timing is in, and these are the kernels that ran. True: may be timed.
  virtual bool decide(std::vector<KernelInfo> kernels) = 0;
  /// Before the first sample.
  virtual void begin_timing() = 0;
  /// What was measured; the judge computes every figure anew from the samples.
  virtual bool timed(Timing timing) = 0;
  /// What was found out about a kernel that passes, beyond the verdict.
  virtual void add(const Fingerprint& print) = 0;
  /// Nothing follows. The result, or as much of it as the loop may know.
  virtual Result finish() = 0;
  /// The job ends early: what is known of it so far, its status as it was. Throws nothing.
  virtual Result abandon() const = 0;
};

}  // namespace attnbench
