#include "cli/commands/commands.h"

#include <doctest/doctest.h>

#include <algorithm>
#include <map>
#include <set>
#include <sstream>

namespace attnbench {
namespace {

/// What `attnbench COMMAND --help` prints.
std::string help_of(const std::string& command) {
  std::ostringstream out;
  std::ostringstream err;
  CHECK(run_command_line({out, err, false, false, {"attnbench", command, "--help"}}) == 0);
  return out.str();
}

/// Every run of spaces and line ends as one space.
std::string one_line(const std::string& text) {
  std::istringstream words(text);
  std::string line;
  for (std::string word; words >> word;) line += word + " ";
  return line;
}

/// Lines that begin with the name of an option.
std::size_t count_options(const std::string& help) {
  std::size_t count = 0;
  std::istringstream lines(help);
  for (std::string line; std::getline(lines, line);) count += line.starts_with("  -") ? 1 : 0;
  return count;
}

using OptionsByCommand = std::map<std::string, std::vector<Option>>;

OptionsByCommand options_by_command() {
  OptionsByCommand options;
  for_each_option([&](const Command& command, const Option& option) {
    options[command.name].push_back(option);
  });
  return options;
}

bool contains(const std::string& text, const std::string& part) {
  return text.find(part) != std::string::npos;
}

}  // namespace

TEST_CASE("the table holds what --help shows, for every command and no option more or less") {
  const OptionsByCommand table = options_by_command();
  CHECK(table.size() == all_commands().size());
  for (const auto& [command, options] : table) {
    const std::string help = help_of(command);
    const std::string text = one_line(help);
    CAPTURE(command);
    CHECK(count_options(help) ==
          static_cast<std::size_t>(std::count_if(options.begin(), options.end(),
                                                 [](const Option& o) { return !is_argument(o); })));
    for (const Option& option : options) {
      CAPTURE(option.names);
      CHECK(contains(text, option.names));
      CHECK_FALSE(option.help.empty());
      CHECK(contains(text, option.help));
      if (!option.group.empty()) CHECK(contains(text, option.group + ":"));
    }
  }
}

TEST_CASE("names of options are used once a command, and rows name only rows of their command") {
  std::map<std::string, std::set<std::string>> names;
  std::vector<std::pair<std::string, std::string>> named;
  for_each_option([&](const Command& command, const Option& option) {
    CAPTURE(option.names);
    CHECK(names[command.name].insert(long_name(option)).second);
    if (!option.excludes.empty()) named.emplace_back(command.name, option.excludes);
    if (!option.needs.empty()) named.emplace_back(command.name, option.needs);
  });
  CHECK(named.size() > 5);
  for (const auto& [command, option] : named) CHECK(names[command].contains(option));
}

TEST_CASE("a completion script finds flags, values and choices in the table") {
  std::map<std::string, Option> run;
  std::map<std::string, Option> explain;
  for_each_option([&](const Command& command, const Option& option) {
    if (std::string(command.name) == "run") run.emplace(long_name(option), option);
    if (std::string(command.name) == "explain") explain.emplace(long_name(option), option);
  });
  CHECK(run.size() > 40);
  CHECK(is_argument(run.at("SCENARIO")));
  CHECK_FALSE(run.at("SCENARIO").required);  // --trace-set stands for it
  CHECK(explain.at("SCENARIO").required);
  CHECK(is_flag(run.at("--help")));
  CHECK(is_flag(run.at("--no-timing")));
  CHECK(run.at("--json").value == "FILE");
  CHECK(run.at("--save-tensors").value == "DIR");
  CHECK(run.at("--color").choices == std::vector<std::string>{"auto", "always", "never"});
  CHECK(run.at("--color").defaults == std::vector<std::string>{"auto"});
  CHECK(run.at("--device").takes_others);
}

TEST_CASE("what repeats a case is in the table: how it runs, not where its results go") {
  std::set<std::string> repeated;
  for_each_option([&](const Command& command, const Option& option) {
    if (std::string(command.name) == "run" && option.repeat != Repeat::kNever) {
      repeated.insert(long_name(option));
    }
  });
  CHECK(repeated == std::set<std::string>{"--all-edges", "--assume-num-sms", "--assume-sm",
                                          "--backend", "--device", "--hang-limit", "--kernel",
                                          "--no-cublaslt", "--no-timing", "--no-validation",
                                          "--plant-fault", "--plugin", "--samples", "--seed",
                                          "--set", "--threads", "--timeout", "--trace-set"});
}

}  // namespace attnbench
