#include "core/atomic_file.h"

#include <doctest/doctest.h>
#include <sys/stat.h>

#include <fstream>
#include <sstream>
#include <string>

#include "core/error.h"

namespace attnbench {
namespace fs = std::filesystem;
namespace {

fs::path scratch_folder() {
  fs::path folder = fs::temp_directory_path() / "attnbench_atomic_file_test";
  fs::remove_all(folder);
  fs::create_directories(folder);
  return folder;
}

std::string text_of(const fs::path& path) {
  std::ostringstream text;
  text << std::ifstream(path).rdbuf();
  return text.str();
}

std::ptrdiff_t num_files(const fs::path& folder) {
  return std::distance(fs::directory_iterator(folder), fs::directory_iterator());
}

}  // namespace

TEST_CASE("what is no regular file is not replaced, and a link stays a link") {
  const fs::path folder = scratch_folder();
  const fs::path pipe = folder / "pipe";
  REQUIRE(::mkfifo(pipe.c_str(), 0600) == 0);
  CHECK_THROWS_WITH_AS(write_file_atomically(pipe, "text"),
                       doctest::Contains("it is not a regular file"), Error);
  CHECK(fs::is_fifo(pipe));

  write_file_atomically(folder / "target", "first");
  fs::create_symlink("target", folder / "link");
  write_file_atomically(folder / "link", "second");
  CHECK(fs::is_symlink(folder / "link"));
  CHECK(text_of(folder / "target") == "second");
}

TEST_CASE("a file is written whole, replaced whole, and nothing else is left in its folder") {
  const fs::path folder = scratch_folder();
  const fs::path path = folder / "file";
  write_file_atomically(path, "first");
  write_file_atomically(path, "second, longer");
  CHECK(text_of(path) == "second, longer");
  CHECK(num_files(folder) == 1);
}

TEST_CASE("an existing file is refused when it must not be replaced, and keeps its text") {
  const fs::path folder = scratch_folder();
  const fs::path path = folder / "file";
  write_file_atomically(path, "mine", Existing::kRefuse);
  CHECK(text_of(path) == "mine");
  CHECK_THROWS_WITH_AS(write_file_atomically(path, "yours", Existing::kRefuse),
                       doctest::Contains("File exists"), Error);
  CHECK(text_of(path) == "mine");
  CHECK(num_files(folder) == 1);
}

TEST_CASE("what could not be replaced is known before there is anything to write") {
  const fs::path folder = scratch_folder();
  const fs::path path = folder / "file";
  check_replaceable(path);
  CHECK(num_files(folder) == 0);
  CHECK_THROWS_WITH_AS(check_replaceable(folder), doctest::Contains("it is a folder"), Error);
  CHECK_THROWS_WITH_AS(check_replaceable(folder / "none" / "file"), doctest::Contains("no folder"),
                       Error);
  write_file_atomically(path, "mine");
  check_replaceable(path);
  CHECK_THROWS_WITH_AS(check_replaceable(path / "file"), doctest::Contains("is not a folder"),
                       Error);
  fs::permissions(path, fs::perms::owner_read);
  CHECK_THROWS_WITH_AS(check_replaceable(path), doctest::Contains("the file is read-only"), Error);
  CHECK_THROWS_AS(write_file_atomically(path, "yours"), Error);
  CHECK(text_of(path) == "mine");
  CHECK(num_files(folder) == 1);
}

TEST_CASE("a target that cannot be written leaves nothing behind") {
  const fs::path folder = scratch_folder();
  CHECK_THROWS_AS(write_file_atomically(folder / "none" / "file", "text"), Error);
  fs::create_directories(folder / "taken" / "inside");
  CHECK_THROWS_AS(write_file_atomically(folder / "taken", "text"), Error);
  CHECK(num_files(folder) == 1);
}

}  // namespace attnbench
