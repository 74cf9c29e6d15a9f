#include "cli/session/run_session.h"

#include <fmt/format.h>
#include <unistd.h>

#include <algorithm>
#include <filesystem>
#include <iterator>
#include <map>
#include <sstream>
#include <string_view>
#include <utility>

#include "cli/environment.h"
#include "cli/exit_code.h"
#include "cli/outputs.h"
#include "cli/session/interrupt.h"
#include "cli/session/progress.h"
#include "cli/session/resume.h"
#include "cli/terminal/text.h"
#include "core/error.h"
#include "gate/baseline.h"
#include "gate/history.h"
#include "interop/trace/record.h"
#include "measure/measure.h"
#include "report/formats/json.h"
#include "report/formats/markdown.h"
#include "report/formats/output_file.h"
#include "report/tables/results.h"
#include "report/tables/verdicts.h"

namespace attnbench {
namespace {

/// Why eight: fewer say too little of how far rounds lie apart once the extremes are left out, and
/// every pass makes its inputs anew.
constexpr int kGatePasses = 8;

/// Whether a backend named with --backend is unsupported in every listed case.
bool is_named_backend_unsupported(const std::vector<std::string>& named,
                                  const std::vector<Result>& results) {
  std::map<std::string, bool> unsupported_everywhere;
  for (const Result& result : results) {
    const bool unsupported = result.status == Status::kUnsupported;
    const auto [entry, is_new] = unsupported_everywhere.emplace(result.backend, unsupported);
    entry->second = entry->second && unsupported;
  }
  return std::any_of(named.begin(), named.end(), [&](const std::string& name) {
    const auto entry = unsupported_everywhere.find(name);
    return entry != unsupported_everywhere.end() && entry->second;
  });
}

/// Runs jobs while stderr tells how far they are, as the console options want it.
std::vector<Result> run_with_progress(const std::vector<Job>& jobs, const BenchOptions& bench,
                                      Journal* journal, CompileAhead* ahead,
                                      const ConsoleOptions& options, const Console& console) {
  ProgressOptions progress_options;
  progress_options.live =
      console.err_is_terminal && !is_dumb_terminal() && !options.quiet && !options.no_progress;
  progress_options.line_per_result = options.verbose;
  progress_options.notices = !options.quiet;
  progress_options.width = output_width(STDERR_FILENO);
  Progress progress(console.err, steady_clock(), progress_options);
  JournalObserver journalling(progress, journal);
  PausingObserver observer(journalling, ahead);
  return run_jobs(jobs, bench, observer);
}

/// Where tables go: stdout unless an output took it. With -q nothing but errors goes to stderr, so
/// a table that had to move there is left out.
struct TablePlace {
  std::ostream* out;  // null = nowhere
  TableOptions options;
};
TablePlace table_place(const OutputPlan& plan, const ConsoleOptions& options,
                       const Console& console) {
  const bool moved = plan.uses_stdout;
  TablePlace place{moved && options.quiet ? nullptr : moved ? &console.err : &console.out, {}};
  const bool is_terminal = moved ? console.err_is_terminal : console.out_is_terminal;
  place.options.color = use_color(options.color, is_terminal);
  place.options.width = output_width(moved ? STDERR_FILENO : STDOUT_FILENO);
  return place;
}

/// How many passes a case has had part in; 0 without times.
int passes_done(const Result& result, const TimingSpec& spec, int passes) {
  if (!result.timing) return 0;
  const bool takes_turns = spec.order == TimingOrder::kAlternate;
  const auto rounds = static_cast<int>(std::max<std::size_t>(result.timing->rounds.size(), 1));
  return takes_turns ? std::max(rounds / pass_share(spec, 0, passes).rounds, 1) : rounds;
}

/// The jobs that take part in a pass: not those without times, nor those that had it in an earlier
/// run.
std::vector<Job> jobs_of_pass(const std::vector<Job>& jobs, const std::vector<Result>& results,
                              int pass, int passes) {
  std::map<std::string_view, const Result*> by_id;
  for (const Result& result : results) by_id[result.id] = &result;
  std::vector<Job> left;
  std::copy_if(jobs.begin(), jobs.end(), std::back_inserter(left), [&](const Job& job) {
    const TimingSpec& spec = job.problem->timing;
    const auto result = by_id.find(job.id);
    if (result == by_id.end() || pass >= passes_of(spec, passes)) return false;
    const int done = passes_done(*result->second, spec, passes);
    return done > 0 && done <= pass;
  });
  return left;
}

/// Pools the samples of a later pass with those that a case has already.
void add_pass_to(std::vector<Result>& results, const std::vector<Result>& pass) {
  std::map<std::string_view, const Result*> by_id;
  for (const Result& result : pass) by_id[result.id] = &result;
  for (Result& result : results) {
    const auto later = by_id.find(result.id);
    if (later != by_id.end()) add_pass(result, *later->second);
  }
}

/// Whether a file of a case (--save-tensors) could not be written, or one that it reads is gone: no
/// fault of the machine that the next run would be without.
bool met_file_trouble(const std::vector<Result>& results) {
  const std::string mark = std::string(error_code(ErrorKind::kIo)) + ":";
  return std::any_of(results.begin(), results.end(), [&](const Result& result) {
    return result.status == Status::kError && !result.reasons.empty() &&
           result.reasons.front().starts_with(mark);
  });
}

/// The steps of run() in order; members are what one step leaves to the next.
class RunSession {
 public:
  RunSession(const RunArguments& arguments, const GateOptions& gate, const OutputPlan& plan,
             RunInfo run, const Console& console, const AheadPlan& ahead)
      : arguments_(arguments),
        options_(arguments.options),
        gate_(gate),
        ahead_(ahead),
        console_(console),
        place_(table_place(plan, arguments.options.console, console)),
        plan_(plan),
        run_(std::move(run)) {}

  int run(const std::vector<Job>& jobs, const BenchOptions& bench) {
    if (!arguments_.baselines.empty()) read_baseline_of(jobs, bench);
    measure(jobs, bench);
    const bool judged = judge_unless_refused(jobs, bench);
    Outcome outcome;
    const KnownInRun known = set_known_apart(results_, gate_);
    outcome.counts = known.counts;
    outcome.named_backend_unsupported =
        is_named_backend_unsupported(result_backends(options_.selection), results_);
    outcome.interrupted = InterruptGuard::interrupted();
    outcome.nothing_compared = report_ && !report_->compared_anything();
    outcome.regression = (report_ && !report_->passed()) || not_repeatable_;
    print(known);
    outcome.usage_error =
        !write_files(outcome.interrupted) || !judged || met_file_trouble(results_);
    return exit_code(outcome);
  }

 private:
  /// Refuses a baseline of another machine before an hour is spent on it.
  void read_baseline_of(const std::vector<Job>& jobs, const BenchOptions& bench) {
    baseline_ = read_baseline(arguments_.baselines, gate_);
    keep_selected({options_.selection.filter, result_backends(options_.selection)},
                  baseline_->results);
    std::erase_if(baseline_->results,
                  [&](const Result& result) { return arguments_.other_parts.contains(result.id); });
    std::vector<Result> planned;
    for (const Job& job : jobs) planned.push_back(describe_job(job, bench));
    judge_results(*baseline_, file_with(planned), gate_);
  }

  /// This run as a gate reads it from a file: with the device and its clocks.
  ResultFile file_with(const std::vector<Result>& results) const {
    std::ostringstream text;
    write_json(text, run_, results);
    return parse_result_file(text.str(), "this run");
  }

  /// A second measurement of some jobs, with its passes and without the journal, which is for the
  /// results that --resume would keep.
  std::vector<Result> run_again(const std::vector<Job>& jobs, const BenchOptions& bench) {
    std::vector<Result> results =
        run_with_progress(jobs, bench, nullptr, nullptr, options_.console, console_);
    add_passes(jobs, bench, results);
    return results;
  }

  /// Times the cases again and again, each time all of them, so that what the machine does for a
  /// second or a minute meets a part of the samples of every case and not all of one.
  void add_passes(const std::vector<Job>& jobs, BenchOptions bench, std::vector<Result>& results) {
    bench.judge_samples = bench.validate;
    bench.validate = false;
    bench.save = SaveTensors::kNever;
    for (bench.pass = 1; bench.pass < bench.passes; ++bench.pass) {
      const std::vector<Job> left = jobs_of_pass(jobs, results, bench.pass, bench.passes);
      add_pass_to(results,
                  run_with_progress(left, bench, nullptr, nullptr, options_.console, console_));
    }
  }

  /// The results of all jobs in their order: those that are kept of an earlier run, and new ones,
  /// which go to the journal as they come.
  void measure(const std::vector<Job>& jobs, const BenchOptions& bench) {
    std::vector<Result> kept;
    if (!arguments_.resume.empty()) {
      KeptResults found = results_to_keep(arguments_.resume, jobs, bench, run_);
      kept = std::move(found.selected);
      others_ = std::move(found.others);
    }
    const std::string target = journal_target(arguments_);
    if (!target.empty()) journal_.emplace(target, run_, with_others(kept));
    if (journal_ && journal_->path() != target && !options_.console.quiet) {
      print_notice(console_.err, fmt::format("another run writes '{}'; this one uses '{}'", target,
                                             journal_->path()));
    }
    const std::vector<Job> left = jobs_left(jobs, kept);
    std::unique_ptr<CompileAhead> ahead = start_ahead(ahead_, left, options_.cache_dir);
    std::vector<Result> added = run_with_progress(left, bench, journal_ ? &*journal_ : nullptr,
                                                  ahead.get(), options_.console, console_);
    if (ahead && options_.console.verbose) print_notice(console_.err, ahead->summary());
    ahead.reset();
    results_ = in_job_order(jobs, std::move(kept), std::move(added));
    add_passes(jobs, bench, results_);
    say_what_is_cut(jobs);
    if (!arguments_.save_baseline.empty() && !InterruptGuard::interrupted())
      self_check(jobs, bench);
  }

  /// Samples that were asked for and that the time limit did not let come.
  void say_what_is_cut(const std::vector<Job>& jobs) const {
    if (options_.console.quiet || InterruptGuard::interrupted()) return;
    std::map<std::string_view, const Result*> by_id;
    for (const Result& result : results_) by_id[result.id] = &result;
    for (const Job& job : jobs) {
      const TimingSpec& spec = job.problem->timing;
      const auto found = by_id.find(job.id);
      if (!spec.samples || found == by_id.end() || !found->second->timing) continue;
      const std::size_t taken = found->second->timing->samples_us.size();
      if (taken >= static_cast<std::size_t>(*spec.samples)) continue;
      print_notice(console_.err, fmt::format("{}: {} of {} samples, as timing.timeout_s {} allows",
                                             job.id, taken, *spec.samples, spec.timeout_s));
    }
  }

  /// A/A: the same program again, which gives the noise floor. Cases that are right once and wrong
  /// once are no baseline.
  void self_check(const std::vector<Job>& jobs, const BenchOptions& bench) {
    const std::vector<std::vector<Result>> runs{results_, run_again(jobs, bench)};
    if (InterruptGuard::interrupted()) return;
    run_.noise_floor = measure_noise_floor(runs, gate_.floor_us);
    results_ = pool_runs(runs);
    GateOptions options = gate_;
    options.lenient = true;
    GateReport check;
    try {
      check = judge_results(file_with(runs[0]), file_with(runs[1]), options);
    } catch (const Error& error) {
      // What no gate would take is no baseline; the results are written all the same.
      not_repeatable_ = true;
      print_error(console_.err, error.full_message());
      return;
    }
    for (const Verdict& verdict : check.verdicts) {
      const bool unsteady = verdict.kind == VerdictKind::kBroken ||
                            verdict.kind == VerdictKind::kFixed ||
                            verdict.kind == VerdictKind::kLessAccurate;
      if (!unsteady) continue;
      not_repeatable_ = true;
      print_error(console_.err, fmt::format("not repeatable: {}: {}", verdict.id, verdict.rule));
    }
    if (const auto waited = num_that_waited(); waited > 0) {
      console_.err << fmt::format(
          "attnbench: other programs had the cores while {} of {} cases were timed: a baseline of "
          "a quiet machine finds smaller slowdowns\n",
          waited, results_.size());
    }
  }

  /// Results whose threads waited for other programs: their times are too long, and a baseline of
  /// them hides what gets slower.
  std::ptrdiff_t num_that_waited() const {
    constexpr double kMuch = 0.05;
    return std::count_if(results_.begin(), results_.end(), [](const Result& result) {
      return result.timing && result.timing->cpu_wait > kMuch;
    });
  }

  /// False when the gate refuses what was measured: the user reads why, and the results are written
  /// all the same.
  bool judge_unless_refused(const std::vector<Job>& jobs, const BenchOptions& bench) {
    if (!baseline_ || InterruptGuard::interrupted()) return true;
    try {
      judge(jobs, bench);
    } catch (const Error& error) {
      print_error(console_.err, error.full_message());
      report_.reset();
      return false;
    }
    return true;
  }

  /// Verdicts, after every case that looks slower was measured again: a slowdown that is gone in
  /// the samples of several measurements was the machine's.
  void judge(const std::vector<Job>& jobs, const BenchOptions& bench) {
    constexpr int kConfirmations = 2;
    for (int round = 0;; ++round) {
      report_ = judge_results(*baseline_, file_with(results_), gate_);
      std::vector<Job> slower;
      for (const Verdict& verdict : report_->verdicts) {
        if (verdict.kind != VerdictKind::kSlower) continue;
        for (const Job& job : jobs) {
          if (job.id == verdict.id) slower.push_back(job);
        }
      }
      if (round == kConfirmations || slower.empty() || InterruptGuard::interrupted()) return;
      const std::vector<Result> again = run_again(slower, bench);
      if (InterruptGuard::interrupted()) return;
      results_ = pool_runs({results_, again});
    }
  }

  /// The table of results, then the verdicts of the gate where there is one.
  void print(const KnownInRun& known) const {
    if (InterruptGuard::interrupted() && !options_.console.quiet) say_how_to_go_on();
    if (place_.out == nullptr) return;
    TableOptions table = place_.options;
    table.elapsed = format_elapsed(steady_clock().now_s() - started_s_);
    if (!report_) table.next = next_step();
    write_table(*place_.out, run_, InterruptGuard::interrupted() ? finished_results() : results_,
                table);
    for (const std::string& line : known.lines) *place_.out << line << "\n";
    if (!report_) return;
    *place_.out << "\n";
    TableOptions options = place_.options;
    options.show_reasons = options_.console.verbose;
    const RowNames names({&results_, &baseline_->results});
    write_verdict_table(*place_.out, *report_, names, options);
  }

  /// The results without those that an interrupt left out, which are counted by a line of their
  /// own.
  std::vector<Result> finished_results() const {
    std::vector<Result> finished;
    std::copy_if(results_.begin(), results_.end(), std::back_inserter(finished),
                 [](const Result& result) { return result.status != Status::kSkipped; });
    return finished;
  }

  /// After an interrupt: how much is left, and how to go on with it.
  void say_how_to_go_on() const {
    const auto skipped = std::count_if(results_.begin(), results_.end(), [](const Result& result) {
      return result.status == Status::kSkipped;
    });
    const std::string& file = result_file_path(options_.outputs);
    const std::string advice =
        file.empty() || file == "-"
            ? "with --json FILE a run can be continued by --resume FILE"
            : fmt::format("continue with the same command and --resume {}", shell_quote(file));
    print_error(console_.err, fmt::format("interrupted: {} of {} results skipped; {}", skipped,
                                          results_.size(), advice));
  }

  /// What to do next with times that nobody has to worry about.
  std::string next_step() const {
    const std::string& file = result_file_path(options_.outputs);
    const bool timed = std::any_of(results_.begin(), results_.end(),
                                   [](const Result& result) { return result.timing.has_value(); });
    if (!timed || file == "-") return "";
    const std::string& baseline = arguments_.save_baseline;
    if (!baseline.empty() && !not_repeatable_ && !InterruptGuard::interrupted()) {
      return fmt::format("next: the same command with --baseline {} gates a later run",
                         shell_quote(baseline));
    }
    if (!file.empty()) return fmt::format("plots: attnbench report {} -o report.html", file);
    return "next: --json FILE keeps the results, for attnbench report, diff and gate";
  }

  /// Not one whose results change from run to run, nor one that failed in the place of the baseline
  /// that it failed against: the next run would pass.
  bool may_save_baseline() const {
    if (not_repeatable_) return false;
    const auto& old = arguments_.baselines;
    const bool in_place = std::any_of(old.begin(), old.end(), [&](const std::string& path) {
      return is_same_file(path, arguments_.save_baseline);
    });
    if (!in_place || (report_ && report_->passed())) return true;
    console_.err << fmt::format("attnbench: '{}' stays as it was: the gate failed\n",
                                arguments_.save_baseline);
    return false;
  }

  /// Results of this run and those of the resumed file that it does not select.
  std::vector<Result> with_others(std::vector<Result> results) const {
    results.insert(results.end(), others_.begin(), others_.end());
    return results;
  }

  /// Whether all could be written; the journal stays when not, or when the run is not complete.
  bool write_files(bool interrupted) {
    try {
      plan_.write(run_, with_others(results_));
      if (!arguments_.history.empty()) append_history(arguments_.history, run_, results_);
      if (!arguments_.summary.empty()) {
        std::ostringstream text;
        SummaryOptions options;
        options.links = arguments_.links;
        write_summary(text, run_, results_, report_ ? &*report_ : nullptr, options);
        write_text(arguments_.summary, text.str());
      }
      if (!arguments_.trace_json.empty()) {
        std::ostringstream text;
        write_trace_records(text, run_, results_, arguments_.trace_names);
        write_text(arguments_.trace_json, text.str());
      }
      if (!arguments_.save_baseline.empty() && !interrupted && may_save_baseline()) {
        write_output(result_file_format(), arguments_.save_baseline, run_, results_);
      }
    } catch (const Error& error) {
      print_error(console_.err, error.full_message());
      return false;
    }
    const bool is_ours = arguments_.journal.empty();
    if (journal_ && is_ours) journal_->remove();
    return true;
  }

  const RunArguments& arguments_;
  const RunOptions& options_;
  const GateOptions& gate_;
  const AheadPlan& ahead_;
  const Console& console_;
  const TablePlace place_;
  const double started_s_ = steady_clock().now_s();
  const OutputPlan& plan_;
  RunInfo run_;
  std::optional<Journal> journal_;
  std::optional<ResultFile> baseline_;
  std::optional<GateReport> report_;
  std::vector<Result> results_;
  std::vector<Result> others_;  // of the file that is resumed, and not of this run
  bool not_repeatable_ = false;
};

}  // namespace

int num_passes(const RunArguments& arguments, bool on_cpu) {
  if (arguments.options.no_timing) return 1;
  const bool is_gated = !arguments.baselines.empty() || !arguments.save_baseline.empty();
  return arguments.passes.value_or(is_gated && on_cpu ? kGatePasses : 1);
}

std::string journal_target(const RunArguments& arguments) {
  if (!arguments.journal.empty()) return arguments.journal;
  const std::string& file = result_file_path(arguments.options.outputs);
  std::error_code error;
  const std::filesystem::file_status status = std::filesystem::status(file, error);
  const bool is_special =
      std::filesystem::exists(status) && !std::filesystem::is_regular_file(status);
  return file.empty() || file == "-" || is_special ? "" : journal_path(file);
}

int run_session(const RunArguments& arguments, const GateOptions& gate, const OutputPlan& plan,
                RunInfo run, const Console& console, const std::vector<Job>& jobs,
                const BenchOptions& bench, const AheadPlan& ahead) {
  return RunSession(arguments, gate, plan, std::move(run), console, ahead).run(jobs, bench);
}

}  // namespace attnbench
