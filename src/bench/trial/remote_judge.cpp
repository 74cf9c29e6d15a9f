// Each call is a message and its answer. Kernels and timing travel in the JSON of a result, which
// has a place for everything that they consist of.
#include "bench/trial/remote_judge.h"

#include <string_view>
#include <utility>

#include "bench/trial/output_parcel.h"
#include "core/error.h"
#include "core/result/write_json.h"

namespace attnbench {
namespace {

using namespace judge_message;

constexpr std::string_view kQuestions{"jocdbmge"};

}  // namespace

bool is_for_judge(char kind) { return kQuestions.find(kind) != std::string_view::npos; }

Message RemoteJudge::tell(char kind, const std::string& text, int file) {
  link_.send(kind, text, file);
  Message answer = link_.receive();
  if (answer.kind == kInterrupted) throw Interrupted{};
  if (answer.kind == kFailed) throw JudgeFailure(answer.text);
  return answer;
}

bool RemoteJudge::goes_on(char kind, const std::string& text, int file) {
  return tell(kind, text, file).kind == kGoOn;
}

bool RemoteJudge::submit(const Submission& what, PipelineOutput&& output) {
  const Parcel parcel = pack(what, std::move(output));
  return goes_on(kSubmit, parcel.text, parcel.file.get());
}

bool RemoteJudge::object(const std::string& reason) { return goes_on(kObject, reason); }

bool RemoteJudge::conclude(const Draw& draw) {
  return goes_on(kConclude, draw.probe ? "probe" : "");
}

bool RemoteJudge::decide(std::vector<KernelInfo> kernels) {
  Result result = describe_job(job_, options_);
  result.kernels = std::move(kernels);
  return goes_on(kDecide, result_to_json(result));
}

void RemoteJudge::begin_timing() { tell(kBegin, ""); }

bool RemoteJudge::timed(Timing timing) {
  Result result = describe_job(job_, options_);
  result.timing = timing_ = std::move(timing);
  return goes_on(kTimed, result_to_json(result));
}

void RemoteJudge::add(const Fingerprint& print) {
  Result result = describe_job(job_, options_);
  result.fingerprint = print;
  goes_on(kPrint, result_to_json(result));
}

Result RemoteJudge::finish() {
  Result result = describe_job(job_, options_);
  result.status = enum_from_name<Status>(tell(kFinish, "").text).value_or(Status::kError);
  const bool is_timed = result.status == Status::kPassed || result.status == Status::kUnverified ||
                        result.status == Status::kImplausible;
  if (is_timed && !timing_.samples_us.empty()) result.timing = std::move(timing_);
  return result;
}

}  // namespace attnbench
