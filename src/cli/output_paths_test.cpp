#include "cli/output_paths.h"

#include <doctest/doctest.h>

#include <stdlib.h>
#include <sys/stat.h>

#include <filesystem>
#include <fstream>

#include "core/error.h"

namespace attnbench {
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
