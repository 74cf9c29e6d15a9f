// Options that several commands share: the variables, the rows, and what the values come to.
//
// A new option of `run`, `support`, `explain` and `compile` is a member of the struct and a row in
// the function of its group; one of a single command is a row in that command's file. --help,
// checks and the command that repeats a case follow from the row.
#pragma once

#include <cstdint>
#include <map>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "cli/options/option_table.h"
#include "report/formats.h"

namespace attnbench {

/// Which cases and backends are meant, and on which device.
struct SelectionOptions {
  std::vector<std::string> backends;
  std::vector<std::string> plugins;  // paths of libraries
  std::string device = "auto";
  std::string assume_sm;
  std::optional<int> assume_num_sms;
  std::string kernel;            // attention kernel of every backend; empty = the first that fits
  std::vector<std::string> set;  // KEY=VALUE
  std::string filter;
  std::string part;        // "K/N" or "slurm"; empty for all
  std::string part_costs;  // a result file that says how long cases take; empty = all the same
  std::optional<std::int64_t> seed;
};

/// How much a command says, and in colour or not.
struct ConsoleOptions {
  bool quiet = false;
  bool verbose = false;
  bool no_progress = false;
  std::string color = "auto";  // auto, always, never
};

/// The files to write, by the name of their format. Empty = not written, "-" = stdout.
using OutputFiles = std::map<std::string, std::string>;

/// The file in the format that the program reads back; empty = none is written.
const std::string& result_file_path(const OutputFiles& files);

/// Options of the commands that run cases.
struct RunOptions {
  SelectionOptions selection;
  ConsoleOptions console;
  OutputFiles outputs;
  std::string save_tensors;
  std::string save;  // "", "failed", "always"
  bool no_timing = false;
  bool no_validation = false;
  bool fingerprint = false;
  std::string sample_checks;  // "all", "query" or "none"; empty = all
  bool all_edges = false;
  std::optional<int> samples;
  std::optional<double> timeout_s;
  std::string cache_dir;
  std::optional<int> compile_jobs;
  bool no_cublas_lt = false;
  int threads = 0;
  bool in_process = false;
  std::optional<double> hang_limit_s;
  std::optional<int> sample_seed;
  std::vector<std::string> plant_faults;  // KIND=REGEX
};

/// Options of the commands that study cases and write a list: support, invariance, compose.
struct StudyOptions {
  std::vector<std::string> scenarios;
  SelectionOptions selection;
  ConsoleOptions console;
  std::string cache_dir;
  int threads = 0;
  std::string json;  // where the list goes; empty = not written, "-" = stdout
};

/// Headings of --help that rows of several files share.
inline constexpr const char* kSelection = "Selection";
inline constexpr const char* kOutputs = "Outputs (FILE '-' is stdout)";
inline constexpr const char* kRunning = "Running";
inline constexpr const char* kGate = "Gate";
inline constexpr const char* kConsole = "Console";

/// --backend, --device, --set, --filter and the like, of run, support, explain and compile.
void add_selection_options(OptionTable& options, SelectionOptions& selection);
/// --plugin, of the commands that load users' backends.
void add_plugin_option(OptionTable& options, std::vector<std::string>& plugins);
/// -q, -v, --no-progress, --color.
void add_console_options(OptionTable& options, ConsoleOptions& console);
/// --NAME for every format that has the help text `help`: &OutputFormat::help of `run`,
/// &OutputFormat::verdict_help of `gate`. A new format is a row of report/formats.cpp.
void add_format_options(OptionTable& options, OutputFiles& files, const char* OutputFormat::*help,
                        const std::vector<OutputFormat>& formats = output_formats());
/// Everything that `run` takes but its SCENARIO arguments and what has to do with a baseline.
void add_run_options(OptionTable& options, RunOptions& run);

/// All of a command that studies cases; `json_help` says what --json writes. --threads and
/// --cache-dir only where it `runs` them.
void add_study_options(OptionTable& options, StudyOptions& study, const char* json_help, bool runs);

/// Single options that some commands have beside those that only they have. An empty group is the
/// first.
void add_threads_option(OptionTable& options, const char* group, int& threads,
                        Repeat repeat = Repeat::kNever);
void add_cache_dir_option(OptionTable& options, const char* group, std::string& dir);
/// One SCENARIO or more; none too where it is not `required`.
void add_scenarios_argument(OptionTable& options, std::vector<std::string>& scenarios,
                            bool required = true);
/// --link, for a summary that is read on a web page.
void add_link_option(OptionTable& options, std::vector<std::string>& links);
/// --filter and --backend, of the commands that read result files.
void add_result_selection(OptionTable& options, std::string& filter,
                          std::vector<std::string>& backends);

/// The names of --backend as results have them: with --kernel where that is given.
std::vector<std::string> result_backends(const SelectionOptions& selection);

/// KEY=VALUE pairs of --set, and --seed after them: explicit flags win. Errors: kUsage for a text
/// without '=' or key.
std::vector<std::pair<std::string, std::string>> scenario_overrides(
    const SelectionOptions& selection);
/// The same with --samples and --timeout.
std::vector<std::pair<std::string, std::string>> scenario_overrides(const RunOptions& options);

}  // namespace attnbench
