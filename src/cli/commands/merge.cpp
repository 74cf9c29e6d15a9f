// attnbench merge: the result files of the parts of a run as one.
//
// Parts of an array job run on machines of one kind, and their files together stand for one run. So
// what would make that untrue is refused, all of it at once: an id in two files, a part that is not
// there or did not end, another machine, another build of attnbench or another seed of the inputs.
#include <fmt/format.h>

#include <map>
#include <memory>
#include <nlohmann/json.hpp>
#include <optional>
#include <set>
#include <sstream>
#include <string>
#include <vector>

#include "cli/commands/commands.h"
#include "cli/environment.h"
#include "cli/exit_code.h"
#include "cli/outputs.h"
#include "cli/terminal/text.h"
#include "core/error.h"
#include "core/parsing.h"
#include "core/result/result_file.h"
#include "gate/foreign.h"
#include "report/formats/json.h"
#include "report/formats/output_file.h"

namespace attnbench {
namespace {

struct MergeCommand {
  std::vector<std::string> files;
  std::string output;
  bool incomplete = false;
  bool ignore_environment = false;
  ConsoleOptions console;
};

/// K and N of the --part that a file was made with.
std::optional<std::pair<int, int>> part_of(const ResultFile& file) {
  const std::vector<std::string>& argv = file.run.command;
  for (std::size_t i = 0; i < argv.size(); ++i) {
    std::string text;
    if (argv[i] == "--part" && i + 1 < argv.size()) text = argv[i + 1];
    if (argv[i].starts_with("--part=")) text = argv[i].substr(std::string("--part=").size());
    std::istringstream in(text);
    int index = 0;
    int count = 0;
    char slash = 0;
    if (in >> index >> slash >> count && slash == '/') return std::pair{index, count};
  }
  return std::nullopt;
}

std::vector<std::string> duplicates(const std::vector<ResultFile>& files) {
  std::map<std::string, const ResultFile*> seen;
  std::vector<std::string> found;
  for (const ResultFile& file : files) {
    for (const Result& result : file.results) {
      const auto [first, is_new] = seen.try_emplace(result.id, &file);
      if (is_new) continue;
      found.push_back(
          fmt::format("{} is in {} and in {}", result.id, first->second->path, file.path));
    }
  }
  return found;
}

/// Parts that no file has, and files that do not hold all of theirs.
std::vector<std::string> gaps(const std::vector<ResultFile>& files) {
  std::vector<std::string> found;
  std::map<int, std::set<int>> parts;
  for (const ResultFile& file : files) {
    if (const auto part = part_of(file)) parts[part->second].insert(part->first);
    if (file.is_journal) found.push_back(file.path + " is the journal of a run that did not end");
    for (const Result& result : file.results) {
      if (result.status != Status::kSkipped) continue;
      found.push_back(fmt::format("{} was skipped in {}", result.id, file.path));
    }
  }
  for (const auto& [count, present] : parts) {
    for (int index = 1; index <= count; ++index) {
      if (!present.contains(index))
        found.push_back(fmt::format("part {}/{} is missing", index, count));
    }
  }
  return found;
}

std::vector<std::string> differences(const std::vector<ResultFile>& files) {
  std::vector<std::string> found;
  for (const ResultFile& file : files) {
    const ResultFile& first = files.front();
    if (file.run.git != first.run.git) {
      found.push_back(fmt::format("{} is of build {}, {} of {}", first.path, first.run.git,
                                  file.path, file.run.git));
    }
    for (const std::string& reason : foreign_reasons(first, file)) {
      found.push_back(fmt::format("{} and {}: {}", first.path, file.path, reason));
    }
  }
  return found;
}

/// The seed of a result's inputs, as text; empty where it says nothing, or where it is swept, so
/// that it differs from case to case of one run.
std::string seed_of(const Result& result) {
  if (result.case_name.find("seed") != std::string::npos) return "";
  const auto problem = parse_json<nlohmann::json>(result.problem_json);
  const nlohmann::json::json_pointer place("/inputs/seed");
  return problem.is_object() && problem.contains(place) ? problem.at(place).dump() : "";
}

/// Scenarios whose inputs were drawn with one seed in one file and another one in the next: no run
/// draws them like that.
std::vector<std::string> other_seeds(const std::vector<ResultFile>& files) {
  struct Seed {
    std::string seed;
    const ResultFile* file;
  };
  std::map<std::string, Seed> of_scenario;
  std::set<std::pair<std::string, const ResultFile*>> told;
  std::vector<std::string> found;
  for (const ResultFile& file : files) {
    for (const Result& result : file.results) {
      const std::string seed = seed_of(result);
      if (seed.empty()) continue;
      const Seed& first = of_scenario.try_emplace(result.scenario, Seed{seed, &file}).first->second;
      if (first.seed == seed || first.file == &file) continue;
      if (!told.insert({result.scenario, &file}).second) continue;
      found.push_back(fmt::format("inputs.seed of {} is {} in {} and {} in {}", result.scenario,
                                  first.seed, first.file->path, seed, file.path));
    }
  }
  return found;
}

void refuse(const std::vector<std::string>& reasons, const char* how) {
  if (reasons.empty()) return;
  fail(ErrorKind::kValue, "merge: {}{}", join(reasons, "; "), how);
}

int run_merge(const MergeCommand& command, const Console& console) {
  const bool uses_stdout =
      check_output_paths(input_paths("FILES", command.files), {{"--output", command.output}});
  std::vector<ResultFile> files;
  for (const std::string& path : command.files) files.push_back(read_result_file(path));
  refuse(duplicates(files), "");
  if (!command.ignore_environment) refuse(differences(files), " (--ignore-environment)");
  refuse(other_seeds(files), "");
  const std::vector<std::string> missing = gaps(files);
  if (!command.incomplete) refuse(missing, " (--incomplete)");
  for (const std::string& gap : missing) print_notice(console.err, gap);

  RunInfo run = files.front().run;
  run.command = console.command;
  run.noise_floor.reset();
  std::vector<Result> results;
  for (ResultFile& file : files) {
    for (Result& result : file.results) results.push_back(std::move(result));
  }
  std::ostringstream text;
  write_json(text, run, results);
  write_text(command.output, text.str());
  if (!uses_stdout && !command.console.quiet) {
    console.out << fmt::format("{}: {} result{} of {} file{}\n", command.output, results.size(),
                               results.size() == 1 ? "" : "s", files.size(),
                               files.size() == 1 ? "" : "s");
  }
  return kExitPassed;
}

}  // namespace

RunCommand declare_merge(OptionTable& options) {
  auto command = std::make_shared<MergeCommand>();
  options.add({.names = "FILES",
               .value = "RESULTS",
               .help = "Result files of the parts of a run (run --part)",
               .target = &command->files,
               .required = true});
  options.add({.names = "-o,--output",
               .value = "FILE",
               .help = "Result file to write, with the results of all parts ('-' is stdout)",
               .target = &command->output,
               .required = true});
  options.add({.names = "--incomplete",
               .help = "Merge even if parts or results are missing, and list what is missing",
               .target = &command->incomplete});
  options.add({.names = "--ignore-environment",
               .help = "Merge files of different machines or builds",
               .target = &command->ignore_environment});
  add_console_options(options, command->console);
  return [command](const Console& console) { return run_merge(*command, console); };
}

}  // namespace attnbench
