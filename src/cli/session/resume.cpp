#include "cli/session/resume.h"

#include <algorithm>
#include <filesystem>
#include <map>
#include <set>
#include <sstream>
#include <string_view>
#include <utility>

#include "core/error.h"
#include "core/result/result_file.h"
#include "gate/belief.h"
#include "gate/foreign.h"
#include "report/formats/json.h"

namespace attnbench {
namespace {

/// The result file, its journal, or both; the journal last, since its results are newer. Without
/// either, the error is about the result file.
std::vector<ResultFile> read_what_is_there(const std::string& path) {
  std::error_code error;
  const std::string journal = journal_path(path);
  const bool has_journal = std::filesystem::exists(journal, error);
  std::vector<ResultFile> files;
  if (std::filesystem::exists(path, error) || !has_journal) {
    files.push_back(read_result_file(path));
  }
  if (has_journal) files.push_back(read_result_file(journal));
  return files;
}

/// Whether measuring again could say more. Errors and skipped cases may go well the next time.
bool is_done(const Result& result, const BenchOptions& bench) {
  switch (result.status) {
    case Status::kPassed:
      return result.timing || !bench.timing;
    case Status::kUnverified:
      return !bench.validate && (result.timing || !bench.timing);
    case Status::kIncorrect:
    case Status::kImplausible:
    case Status::kUnsupported:
      return true;
    case Status::kError:
    case Status::kSkipped:
      return false;
  }
  return false;
}

/// Whether a user's backend is of the library that `result` was measured with.
bool is_same_library(const Job& job, const Result& result) {
  const PluginInfo* plugin = job.backend->plugin();
  if (plugin == nullptr) return true;
  return result.plugin && result.plugin->sha256 == plugin->sha256;
}

/// What a file of these jobs would hold before they run: what an earlier file is compared with.
ResultFile planned_file(const std::vector<Job>& jobs, const BenchOptions& bench,
                        const RunInfo& run) {
  std::vector<Result> planned;
  for (const Job& job : jobs) planned.push_back(describe_job(job, bench));
  std::ostringstream text;
  write_json(text, run, planned);
  return parse_result_file(text.str(), "this run");
}

/// The newer of two results takes the place of the older one.
void add_other(Result&& result, std::vector<Result>& others) {
  const auto known = std::find_if(others.begin(), others.end(),
                                  [&](const Result& other) { return other.id == result.id; });
  if (known == others.end()) {
    others.push_back(std::move(result));
  } else {
    *known = std::move(result);
  }
}

}  // namespace

std::string journal_path(const std::string& result_path) { return result_path + ".journal"; }

KeptResults results_to_keep(const std::string& path, const std::vector<Job>& jobs,
                            const BenchOptions& bench, const RunInfo& run) {
  const ResultFile planned = planned_file(jobs, bench, run);
  std::set<std::string_view> selected;
  for (const Job& job : jobs) selected.insert(job.id);
  std::map<std::string, Result> done;
  KeptResults kept;
  for (ResultFile& file : read_what_is_there(path)) {
    std::vector<std::string> reasons = foreign_reasons(file, planned);
    if (reasons.empty()) reasons = scale_differences(file, planned);
    if (!reasons.empty()) {
      fail(ErrorKind::kUsage, "--resume {}: {}", file.path, reasons.front());
    }
    for (Result& result : file.results) {
      if (!selected.contains(result.id)) {
        add_other(std::move(result), kept.others);
        continue;
      }
      // What contradicts itself was not written by a run, and is measured again.
      const bool believed = contradictions(result).empty();
      if (believed && is_done(result, bench)) done.insert_or_assign(result.id, std::move(result));
    }
  }
  for (const Job& job : jobs) {
    const auto found = done.find(job.id);
    if (found == done.end() || !is_same_library(job, found->second)) continue;
    kept.selected.push_back(std::move(found->second));
  }
  return kept;
}

void JournalObserver::job_finished(const Result& result) {
  next_.job_finished(result);
  if (journal_ == nullptr) return;
  const std::string trouble = journal_->add(result);
  if (!trouble.empty()) next_.notice(trouble);
}

std::vector<Job> jobs_left(const std::vector<Job>& jobs, const std::vector<Result>& kept) {
  std::set<std::string_view> done;
  for (const Result& result : kept) done.insert(result.id);
  std::vector<Job> left = jobs;
  std::erase_if(left, [&](const Job& job) { return done.contains(job.id); });
  return left;
}

std::vector<Result> in_job_order(const std::vector<Job>& jobs, std::vector<Result> kept,
                                 std::vector<Result> added) {
  std::map<std::string, Result> by_id;
  for (std::vector<Result>* list : {&kept, &added}) {
    for (Result& result : *list) by_id.insert_or_assign(result.id, std::move(result));
  }
  std::vector<Result> ordered;
  for (const Job& job : jobs) {
    const auto found = by_id.find(job.id);
    if (found != by_id.end()) ordered.push_back(std::move(found->second));
  }
  return ordered;
}

}  // namespace attnbench
