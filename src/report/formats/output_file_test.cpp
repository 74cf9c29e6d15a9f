#include <doctest/doctest.h>
#include <unistd.h>

#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <iterator>
#include <thread>

#include "core/error.h"
#include "report/formats/output_file.h"

namespace attnbench {
namespace {

namespace fs = std::filesystem;

struct Folder {
  Folder() {
    std::string name = (fs::temp_directory_path() / "attnbench_report_XXXXXX").string();
    path = mkdtemp(name.data());
  }
  ~Folder() {
    fs::permissions(path, fs::perms::owner_all);
    fs::remove_all(path);
  }
  std::string file(const std::string& name) const { return (path / name).string(); }
  std::size_t size() const {
    return static_cast<std::size_t>(
        std::distance(fs::directory_iterator(path), fs::directory_iterator()));
  }
  fs::path path;
};

std::string content(const std::string& path) {
  std::ifstream in(path);
  return {std::istreambuf_iterator<char>(in), {}};
}

const OutputFormat& json() { return output_formats().front(); }

void check_refused(const std::string& path, const std::string& why) {
  CAPTURE(path);
  try {
    check_writable(path);
    FAIL("accepted");
  } catch (const Error& error) {
    CHECK(error.kind() == ErrorKind::kIo);
    CHECK(std::string(error.what()).find(path) != std::string::npos);
    CHECK(std::string(error.what()).find(why) != std::string::npos);
  }
}

}  // namespace

TEST_CASE("the formats have the names of their flags") {
  std::vector<std::string> names;
  for (const OutputFormat& format : output_formats()) names.emplace_back(format.name);
  CHECK(names == std::vector<std::string>{"json", "csv", "markdown", "junit", "google-benchmark",
                                          "github-benchmark", "vllm-csv", "vllm-json", "bencher",
                                          "otava-csv", "nvbench-json", "cudnn-csv", "prometheus"});
}

TEST_CASE("an output file replaces the old one and leaves no other file") {
  const Folder folder;
  std::ofstream(folder.file("r.json")) << "old";
  write_output(json(), folder.file("r.json"), {}, {});
  CHECK(content(folder.file("r.json")).starts_with("{\n  \"schema_version\": 1,"));
  CHECK(folder.size() == 1);
}

TEST_CASE("a symbolic link stays a link to the new content") {
  const Folder folder;
  std::ofstream(folder.file("target")) << "old";
  fs::create_symlink("target", folder.path / "link");
  write_output(json(), folder.file("link"), {}, {});
  CHECK(fs::is_symlink(folder.path / "link"));
  CHECK(content(folder.file("target")).starts_with("{"));
}

TEST_CASE("a device file is written in place") {
  write_output(json(), "/dev/null", {}, {});
  CHECK(fs::is_character_file("/dev/null"));
  if (fs::exists("/dev/full")) {
    CHECK_THROWS_AS(write_output(json(), "/dev/full", {}, {}), Error);
  }
}

TEST_CASE("writers at the same time leave one whole file") {
  const Folder folder;
  const std::string path = folder.file("r.json");
  const auto write = [&] {
    for (int i = 0; i < 50; ++i) write_output(json(), path, {}, std::vector<Result>(20));
  };
  std::thread other(write);
  write();
  other.join();
  CHECK(content(path).ends_with("]\n}\n"));
  CHECK(folder.size() == 1);
}

TEST_CASE("a path that can be written is accepted and nothing is left behind") {
  const Folder folder;
  check_writable(folder.file("new.json"));
  CHECK(folder.size() == 0);
  std::ofstream(folder.file("old.json")) << "old";
  check_writable(folder.file("old.json"));
  CHECK(content(folder.file("old.json")) == "old");
  CHECK(folder.size() == 1);
  check_writable("-");
  check_writable("/dev/null");
}

TEST_CASE("paths that cannot be written are refused with their name") {
  const Folder folder;
  check_refused(folder.file("none/r.json"), "no folder");
  check_refused(folder.path.string(), "it is a folder");
  std::ofstream(folder.file("file")) << "x";
  check_refused(folder.file("file/r.json"), "is not a folder");
  fs::permissions(folder.path / "file", fs::perms::owner_read);
  check_refused(folder.file("file"), "read-only");
  fs::permissions(folder.path, fs::perms::owner_read | fs::perms::owner_exec);
  check_refused(folder.file("r.json"), "read-only");
  CHECK_THROWS_AS(write_output(json(), folder.file("r.json"), {}, {}), Error);
  CHECK_THROWS_AS(check_writable(""), Error);
}

}  // namespace attnbench
