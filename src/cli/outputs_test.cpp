#include "cli/outputs.h"

#include <doctest/doctest.h>

#include <stdlib.h>
#include <sys/stat.h>
#include <algorithm>
#include <filesystem>
#include <fstream>
#include <sstream>

#include "cli/options/option_parser.h"
#include "cli/options/shared_options.h"
#include "core/error.h"

namespace attnbench {
namespace {

void write_count(std::ostream& out, const RunInfo&, const std::vector<Result>& results) {
  out << results.size() << "\n";
}

/// The formats of the program and one more.
std::vector<OutputFormat> formats_with_count() {
  std::vector<OutputFormat> formats = output_formats();
  formats.push_back({.name = "count", .help = "Write how many results", .write = write_count});
  return formats;
}

}  // namespace

TEST_CASE("a format that is one row more has an option with its help, and is written") {
  const std::vector<OutputFormat> formats = formats_with_count();
  ProgramSyntax program{.name = "prog", .commands = {{.name = "run"}}};
  OutputFiles files;
  add_format_options(program.commands[0].options, files, &OutputFormat::help, formats);
  const std::string help = parse_line(program, {"prog", "run", "--help"}).answer;
  CHECK(help.find("--count FILE") != std::string::npos);
  CHECK(help.find("Write how many results") != std::string::npos);
  parse_line(program, {"prog", "run", "--count", "-", "--csv", "r.csv"});
  CHECK(files.at("count") == "-");
  const OutputPlan plan = plan_outputs(files, formats);
  CHECK(plan.uses_stdout);
  REQUIRE(plan.files.size() == 2);
  CHECK(plan.files[0].second == "r.csv");
  std::ostringstream text;
  plan.files[1].first->write(text, {}, std::vector<Result>(3));
  CHECK(text.str() == "3\n");
}

TEST_CASE("a gate has options of those formats only that hold verdicts") {
  OptionTable options;
  OutputFiles files;
  add_format_options(options, files, &OutputFormat::verdict_help, formats_with_count());
  std::vector<std::string> names;
  for (const Option& option : options.rows()) names.push_back(option.names);
  CHECK(names == std::vector<std::string>{"--json", "--markdown", "--junit"});
}

TEST_CASE("every format with a help for the gate can write verdicts, and one is the result file") {
  for (const OutputFormat& format : output_formats()) {
    CAPTURE(format.name);
    const bool has_help = format.verdict_help != nullptr;
    const bool has_verdicts = format.write_verdicts != nullptr;
    const bool has_agreement = format.write_agreement != nullptr;
    CHECK(has_help == has_verdicts);
    CHECK((has_verdicts || !has_agreement));
  }
  CHECK(std::count_if(output_formats().begin(), output_formats().end(),
                      [](const OutputFormat& format) { return format.is_result_file; }) == 1);
  CHECK(std::string(result_file_format().name) == "json");
}

TEST_CASE("only the result file may replace the one that a run is resumed from") {
  const std::vector<OutputPath> paths =
      output_paths(plan_outputs({{"csv", "r.csv"}, {"json", "r.json"}, {"junit", ""}}));
  REQUIRE(paths.size() == 2);
  CHECK(paths[0].option == "--json");
  CHECK(paths[0].replaces == "--resume");
  CHECK(paths[1].option == "--csv");
  CHECK(paths[1].replaces.empty());
  CHECK(result_file_path({{"json", "r.json"}}) == "r.json");
  CHECK(result_file_path({}).empty());
}

namespace {

namespace fs = std::filesystem;

/// A folder with the file "old", in which the test runs.
class Folder {
 public:
  Folder() : before_(fs::current_path()) {
    std::string pattern = (fs::temp_directory_path() / "attnbench-paths-XXXXXX").string();
    REQUIRE(mkdtemp(pattern.data()) != nullptr);
    path_ = pattern;
    fs::current_path(path_);
    std::ofstream("old") << "x";
  }
  ~Folder() {
    fs::current_path(before_);
    fs::remove_all(path_);
  }
  Folder(const Folder&) = delete;
  Folder& operator=(const Folder&) = delete;
  std::string absolute(const std::string& name) const { return (path_ / name).string(); }

 private:
  fs::path before_;
  fs::path path_;
};

/// "", or what is refused.
std::string refusal(const std::vector<InputPath>& inputs, const std::vector<OutputPath>& outputs) {
  try {
    check_output_paths(inputs, outputs);
  } catch (const Error& error) {
    CHECK(error.kind() == ErrorKind::kUsage);
    return error.what();
  }
  return "";
}

}  // namespace

TEST_CASE("an output that is an input is refused under every name that it has") {
  const Folder folder;
  fs::create_directory("sub");
  fs::create_symlink("old", "link");
  fs::create_hard_link("old", "twin");
  for (const std::string& name :
       {std::string("old"), std::string("./old"), std::string("sub/../old"), folder.absolute("old"),
        std::string("link"), std::string("twin")}) {
    CAPTURE(name);
    const std::string text = refusal({{"RESULTS", "old"}}, {{"--json", name}});
    CHECK(text.find("--json would replace '" + name + "', which is read as RESULTS") !=
          std::string::npos);
  }
  CHECK(refusal({{"RESULTS", "old"}}, {{"--json", "new"}}).empty());
  CHECK(refusal({{"RESULTS", "old"}}, {{"--json", ""}}).empty());
}

TEST_CASE("two outputs are not one file, also one that is not there yet") {
  const Folder folder;
  fs::create_symlink("new", "dangling");
  for (const std::string& name : {std::string("new"), std::string("./new"), folder.absolute("new"),
                                  std::string("dangling")}) {
    CAPTURE(name);
    CHECK(
        refusal({}, {{"--json", "new"}, {"--csv", name}}).find("--json and --csv both write to") !=
        std::string::npos);
  }
  CHECK(refusal({}, {{"--json", "-"}, {"--csv", "-"}}).find("stdout") != std::string::npos);
  CHECK(refusal({}, {{"--json", "new"}, {"--csv", "other"}, {"--junit", ""}, {"--x", ""}}).empty());
}

TEST_CASE("devices and pipes can be written by many") {
  const Folder folder;
  REQUIRE(mkfifo("pipe", 0600) == 0);
  for (const std::string& name : {std::string("/dev/null"), std::string("pipe")}) {
    CHECK(refusal({{"RESULTS", name}}, {{"--json", name}, {"--csv", name}}).empty());
  }
}

TEST_CASE("an output may replace the input that it is the next state of") {
  const Folder folder;
  CHECK(refusal({{"--resume", "old"}}, {{"--json", "old", "--resume"}}).empty());
  CHECK_FALSE(refusal({{"--baseline", "old"}}, {{"--json", "old", "--resume"}}).empty());
}

TEST_CASE("it is known whether an output is stdout") {
  const Folder folder;
  CHECK(check_output_paths({}, {{"--json", "-"}, {"--csv", "new"}}));
  CHECK_FALSE(check_output_paths({}, {{"--json", ""}, {"--csv", "new"}}));
  CHECK_THROWS_WITH_AS(check_output_paths({}, {{"--csv", "none/new"}}),
                       doctest::Contains("no folder 'none'"), Error);
}

}  // namespace attnbench
