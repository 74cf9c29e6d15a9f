// What each run shows, in the order in which reasons are read: what needs no reference, what other
// runs say, then the errors.
#include "bench/trial/case_judge.h"

#include <fmt/format.h>

#include <algorithm>
#include <utility>

#include "bench/judge/judge.h"
#include "bench/save.h"
#include "bench/trial/timed_samples.h"
#include "core/error.h"

namespace attnbench {
namespace {

using Stage = Docket::Stage;

bool same_bytes(const Tensor& a, const Tensor& b) {
  return std::equal(a.bytes(), a.bytes() + a.size_bytes(), b.bytes(), b.bytes() + b.size_bytes());
}

JobKind kind_of(const Job& job, const BenchOptions& options, bool has_probe) {
  JobKind kind;
  kind.validated = options.validate;
  kind.users = job.backend->is_users();
  kind.held = options.device_facts.is_cuda && job.backend->plugin() != nullptr;
  kind.probed = has_probe;
  // Attention and MLA of a user always have inputs that can be drawn anew; an encoder whose scales
  // follow its values, and an operation, need not.
  const AttentionType type = job.problem->attention.type;
  kind.samples = (options.validate || options.judge_samples) && kind.users && options.timing &&
                 options.sample_checks == SampleChecking::kAll && type != AttentionType::kOp &&
                 type != AttentionType::kMmEncoder;
  return kind;
}

}  // namespace

CaseJudge::CaseJudge(const Job& job, const BenchOptions& options, BenchObserver& observer,
                     CaseRun& case_run, std::function<DeviceSpeed*()> speed, JobProbe* probe)
    : job_(job),
      options_(options),
      observer_(observer),
      case_run_(case_run),
      speed_(std::move(speed)),
      probe_(probe),
      is_deterministic_(job.backend->is_deterministic(*job.problem)),
      docket_(kind_of(job, options, probe != nullptr)),
      result_(describe_job(job, options)) {
  result_.reasons.clear();
}

bool CaseJudge::submit(const Submission& what, PipelineOutput&& output) {
  docket_.add(what);
  if (probe_ != nullptr && what.run == RunKind::kJudged && what.draw == kProbeDraw) {
    on_probe_ = std::move(output);
    return nothing_against();
  }
  if (what.draw != Draw{} && what.run != RunKind::kTimed) {
    fail(ErrorKind::kInternal, "run '{}': no such draw of inputs", to_string(what.run));
  }
  const bool needs_judged = what.run != RunKind::kOtherQuery && what.run != RunKind::kJudged;
  if (needs_judged && !output_ && docket_.stage() == Stage::kBeforeVerdict) {
    fail(ErrorKind::kInternal, "run '{}' came before the one that is judged", to_string(what.run));
  }
  switch (what.run) {
    case RunKind::kOtherQuery:
      other_query_ = what.words;
      before_ = std::move(output);
      break;
    case RunKind::kJudged:
      output_ = std::move(output);
      if (options_.validate) find_defects();
      break;
    case RunKind::kRepeat:
      compare_repeat(std::move(output));
      break;
    case RunKind::kHeld:
      compare_held(std::move(output));
      break;
    case RunKind::kAlone:
      compare_alone(what.index, output);
      break;
    case RunKind::kNegated:
      judge_negated(what.words, output);
      break;
    case RunKind::kEdge:
      compare_edge(what.words, output);
      break;
    case RunKind::kTimed:
      judge_timed(what, output);
      break;
  }
  return nothing_against();
}

bool CaseJudge::object(const std::string& reason) {
  result_.reasons.push_back(reason);
  return false;
}

/// What can be said without a reference: written caches, stray writes.
void CaseJudge::find_defects() {
  if (!output_->defect.empty()) result_.reasons.push_back(output_->defect);
  const std::string wrong = case_run_.check_stored(*output_);
  if (!wrong.empty()) result_.reasons.push_back(wrong);
}

/// Equal bytes of two runs; of a backend whose runs may differ, each is held against the reference.
void CaseJudge::compare_repeat(PipelineOutput&& output) {
  const std::string difference = describe_difference(*output_, output);
  if (is_deterministic_ && !difference.empty()) {
    result_.reasons.push_back("not deterministic: " + difference);
  }
  // Equal bytes have the verdict of the first run.
  if (is_deterministic_ || difference.empty()) return;
  observer_.notice(job_.id + ": not deterministic: " + difference);
  second_ = std::move(output);
}

void CaseJudge::compare_held(PipelineOutput&& output) {
  const std::string difference = describe_difference(*output_, output);
  if (difference.empty()) return;
  if (!is_deterministic_) {
    held_ = std::move(output);
    return;
  }
  result_.reasons.push_back(
      "run() does not queue its work on the stream that it is given: with that stream held, " +
      difference);
}

/// The same bytes wherever the buffers stand, or as right.
void CaseJudge::compare_edge(const std::string& where, const PipelineOutput& output) {
  const std::string difference = describe_difference(*output_, output);
  if (difference.empty()) return;
  if (!is_deterministic_) return add_reasons(output, where + ": ");
  result_.reasons.push_back(where + ", " + difference);
}

/// Reported for every backend, demanded where the scenario says attention.batch_invariant.
void CaseJudge::compare_alone(std::int64_t request, const PipelineOutput& output) {
  const BatchInvariance invariance = case_run_.compare_alone(request, *output_, output);
  result_.batch_invariance = invariance;
  if (invariance.equal || !job_.problem->attention.batch_invariant) return;
  result_.reasons.push_back("not batch invariant: request " + std::to_string(invariance.request) +
                            " alone gives other bytes than in the batch");
}

bool CaseJudge::conclude(const Draw& draw) {
  if (draw == kProbeDraw) {
    judge_second_draw();
    return probed_->reasons.empty();
  }
  docket_.close(Stage::kBeforeVerdict, nothing_against());
  if (!output_) fail(ErrorKind::kInternal, "no output was handed in");
  judge_output();
  judge_again();
  find_stale_output();
  return nothing_against();
}

void CaseJudge::judge_second_draw() {
  if (!on_probe_) fail(ErrorKind::kInternal, "no output on the second draw was handed in");
  if (probed_) fail(ErrorKind::kInternal, "the second draw was judged twice");
  probed_ = judge_probe(probe_->case_run(), *on_probe_);
  if (!probed_) throw Interrupted{};
  if (!probed_->reasons.empty() && options_.save == SaveTensors::kFailed) {
    save_of(probe_->case_run(), *on_probe_);
  }
  on_probe_.reset();
}

/// What neither draw would have shown.
void CaseJudge::find_blind_spots() {
  if (!probed_ || !output_) return;
  result_.blind_to = attnbench::find_blind_spots(case_run_, *output_, *probed_);
  if (!result_.blind_to) throw Interrupted{};
}

Judgement CaseJudge::judgement_of(const PipelineOutput& output) {
  std::optional<Judgement> judgement = case_run_.judge(output);
  if (!judgement) throw Interrupted{};
  return *std::move(judgement);
}

void CaseJudge::judge_output() {
  Judgement judgement = judgement_of(*output_);
  result_.error = std::move(judgement.error);
  result_.lse_error = std::move(judgement.lse_error);
  result_.quantization_error = std::move(judgement.quantization_error);
  result_.rank_errors = std::move(judgement.rank_errors);
  result_.sample_seed = judgement.sample_seed;
  if (result_.sample_seed && !result_.repro.empty()) {
    result_.repro += fmt::format(" --sample-seed {}", *result_.sample_seed);
  }
  for (std::string& reason : judgement.reasons) result_.reasons.push_back(std::move(reason));
  std::string cost = object_to_quantization(*job_.problem, result_.quantization_error);
  if (!cost.empty()) result_.reasons.push_back(std::move(cost));
}

void CaseJudge::add_reasons(const PipelineOutput& output, const std::string& when) {
  for (const std::string& reason : judgement_of(output).reasons) {
    result_.reasons.push_back(when + reason);
  }
}

void CaseJudge::judge_again() {
  if (second_) add_reasons(*second_, "second run: ");
  if (held_) add_reasons(*held_, "with its stream held: ");
  second_.reset();
  held_.reset();
}

/// Something is wrong anyway: whether it is what an earlier run left.
void CaseJudge::find_stale_output() {
  if (before_ && !nothing_against() && same_bytes(before_->output, output_->output)) {
    result_.reasons.push_back(fmt::format(
        "a run with {} gave the same output: run() has to compute all of it anew", other_query_));
  }
  before_.reset();
}

/// What is kept later, or of the keys, is found by other values. Negated ones make a run for which
/// the reference is there already.
void CaseJudge::judge_negated(const std::string& words, const PipelineOutput& output) {
  if (output_ && describe_difference(*output_, output).empty()) return;
  const Judgement judgement = judgement_of(output);
  if (judgement.reasons.empty()) return;
  result_.reasons.push_back(
      fmt::format("remembers earlier values: after {}, the output is not the negated one: {}",
                  words, judgement.reasons.front()));
}

/// A sample is judged on the values that it had, by some rows.
void CaseJudge::judge_timed(const Submission& what, const PipelineOutput& output) {
  const bool was_timed = result_.timing && what.index >= 0 &&
                         what.index < static_cast<std::int64_t>(result_.timing->samples_us.size());
  if (!was_timed) fail(ErrorKind::kInternal, "sample {} was not timed", what.index);
  if (what.draw.nonce == 0) {
    fail(ErrorKind::kInternal, "sample {} had the inputs of the run before it", what.index);
  }
  const auto finding = judge_timed_sample(case_run_, what.index, what.draw.nonce, output);
  if (!finding) throw Interrupted{};
  if (!finding->reason.empty()) result_.reasons.push_back(finding->reason);
  if (finding->check && result_.timing) result_.timing->checked_samples.push_back(*finding->check);
}

bool CaseJudge::decide(std::vector<KernelInfo> kernels) {
  if (!options_.validate) docket_.close(Stage::kBeforeVerdict, true);
  docket_.close(Stage::kBeforeTiming, nothing_against());
  // Why: to hand it in is not enough, and whoever hands it in may be the backend under test.
  if (on_probe_) fail(ErrorKind::kInternal, "the output on the second draw was never judged");
  const bool only_probe_is_wrong = nothing_against() && probed_ && !probed_->reasons.empty();
  if (probed_) probed_->add_to(result_);
  result_.kernels = std::move(kernels);
  result_.status = nothing_against() ? Status::kPassed : Status::kIncorrect;
  if (!options_.validate) result_.status = Status::kUnverified;
  find_blind_spots();
  if (!only_probe_is_wrong || options_.save == SaveTensors::kAlways) save();
  // A user's runs after timing are held against it.
  if (!job_.backend->is_users()) output_.reset();
  return options_.timing && result_.status != Status::kIncorrect;
}

void CaseJudge::save() const {
  const bool saves =
      options_.save == SaveTensors::kAlways ||
      (options_.save == SaveTensors::kFailed && result_.status == Status::kIncorrect);
  if (saves && output_) save_of(case_run_, *output_);
}

void CaseJudge::save_of(const CaseRun& case_run, const PipelineOutput& output) const {
  TensorList tensors;
  case_run.add_tensors(output, tensors);
  save_tensors(options_.save_dir, result_, *job_.backend, tensors);
}

void CaseJudge::begin_timing() {
  DeviceSpeed* const speed = speed_();
  if (speed != nullptr) speed->ceilings(*job_.problem, *job_.backend);  // measures, the first time
}

bool CaseJudge::timed(Timing timing) {
  result_.timing = checked_timing(std::move(timing));
  add_prediction(*job_.problem, *result_.timing);
  note_ranks(*job_.problem, *result_.timing);
  implausible_ = judge_speed(*job_.problem, *job_.backend, speed_(), result_);
  const std::string notice = notice_of_host_time(result_);
  if (!notice.empty()) observer_.notice(notice);
  return nothing_against();
}

Result CaseJudge::finish() {
  const bool was_decided = docket_.stage() == Stage::kAfterTiming;
  const bool is_through =
      was_decided && (result_.timing || !options_.timing || result_.status == Status::kIncorrect);
  if (!is_through) fail(ErrorKind::kInternal, "the job was ended before it was through");
  if (result_.timing) docket_.close(Stage::kAfterTiming, nothing_against());
  if (!nothing_against()) {
    result_.status = Status::kIncorrect;
    result_.timing.reset();
    result_.throughput.reset();
  } else if (!implausible_.empty()) {
    result_.status = Status::kImplausible;
    result_.reasons = {implausible_};
  }
  return result_;
}

}  // namespace attnbench
