// Options shared by several commands: how they are declared, and what they come to.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <utility>
#include <vector>

namespace CLI {
class App;
}

namespace attnbench {

/// Options that say which cases and backends are meant, of run, support and explain.
struct SelectionOptions {
  std::vector<std::string> backends;
  std::vector<std::string> plugins;  // paths of libraries
  std::string device = "auto";
  std::string assume_sm;
  std::optional<int> assume_num_sms;
  std::string kernel;  // attention kernel of every backend; empty = the first that fits
  std::vector<std::string> set;  // KEY=VALUE
  std::string filter;
  std::string part;  // "K/N", or empty for all
  std::optional<std::int64_t> seed;
};

/// Options on how a command speaks.
struct ConsoleOptions {
  bool quiet = false;
  bool verbose = false;
  bool no_progress = false;
  std::string color = "auto";  // auto, always, never
};

/// Options of the commands that run cases.
struct RunOptions {
  SelectionOptions selection;
  ConsoleOptions console;
  std::string json, csv, markdown, junit;  // empty = not written, "-" = stdout
  std::string google_benchmark, github_benchmark, vllm_csv, vllm_json;
  std::string save_tensors;
  std::string save;  // "", "failed", "always"
  bool no_timing = false;
  bool no_validation = false;
  std::optional<int> samples;
  std::optional<double> timeout_s;
  std::string cache_dir;
  bool no_cublas_lt = false;
  int threads = 0;
  bool in_process = false;
  std::optional<double> hang_limit_s;
  std::vector<std::string> plant_faults;  // KIND=REGEX
};

void add_selection_options(CLI::App& app, SelectionOptions& options);
/// --plugin, of the commands that ask users' backends for something.
void add_plugin_option(CLI::App& app, std::vector<std::string>& plugins);
void add_console_options(CLI::App& app, ConsoleOptions& options);
/// Everything that `run` takes but its SCENARIO arguments.
void add_run_options(CLI::App& app, RunOptions& options);

/// The names of --backend as results have them: with --kernel where that is given.
std::vector<std::string> result_backends(const SelectionOptions& selection);

/// KEY=VALUE pairs of --set, and --seed after them: explicit flags win. Errors: kUsage for a text
/// without '=' or key.
std::vector<std::pair<std::string, std::string>> scenario_overrides(
    const SelectionOptions& selection);
/// The same with --samples and --timeout.
std::vector<std::pair<std::string, std::string>> scenario_overrides(const RunOptions& options);

/// The options that a repeated run of one case needs, shell-quoted, each after a space; without
/// --filter and the output files.
std::string repeat_options(const RunOptions& options);

}  // namespace attnbench
