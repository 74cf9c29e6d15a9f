#include "core/system/atomic_file.h"

#include <doctest/doctest.h>
#include <fcntl.h>
#include <sys/inotify.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <atomic>
#include <cstdio>
#include <string>
#include <thread>
#include <vector>

#include "core/error.h"
#include "core/test_folder.h"

namespace attnbench {
namespace fs = std::filesystem;

TEST_CASE("what is no regular file is not replaced, and a link stays a link") {
  const TestFolder folder;
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

TEST_CASE("links that lead to no file yet stay links, and a circle of them is refused") {
  const TestFolder folder;
  fs::create_directory(folder / "deep");
  fs::create_symlink("deep/second", folder / "first");
  fs::create_symlink("../target", folder / "deep" / "second");
  check_replaceable(folder / "first");
  CHECK_FALSE(fs::exists(folder / "target"));
  write_file_atomically(folder / "first", "text");
  CHECK(fs::is_symlink(folder / "first"));
  CHECK(fs::is_symlink(folder / "deep" / "second"));
  CHECK(text_of(folder / "target") == "text");

  fs::create_symlink("nowhere/file", folder / "lost");
  CHECK_THROWS_WITH_AS(check_replaceable(folder / "lost"), doctest::Contains("no folder '"), Error);
  fs::create_symlink("circle", folder / "circle");
  CHECK_THROWS_WITH_AS(check_replaceable(folder / "circle"),
                       doctest::Contains("Too many levels of symbolic links"), Error);
  CHECK(fs::is_symlink(folder / "lost"));
  CHECK(fs::is_symlink(folder / "circle"));
}

TEST_CASE("a file is written whole, replaced whole, and nothing else is left in its folder") {
  const TestFolder folder;
  const fs::path path = folder / "file";
  write_file_atomically(path, "first");
  write_file_atomically(path, "second, longer");
  CHECK(text_of(path) == "second, longer");
  CHECK(folder.num_files() == 1);
}

TEST_CASE("an existing file is refused when it must not be replaced, and keeps its text") {
  const TestFolder folder;
  const fs::path path = folder / "file";
  write_file_atomically(path, "mine", Existing::kRefuse);
  CHECK(text_of(path) == "mine");
  CHECK_THROWS_WITH_AS(write_file_atomically(path, "yours", Existing::kRefuse),
                       doctest::Contains("File exists"), Error);
  CHECK(text_of(path) == "mine");
  CHECK(folder.num_files() == 1);
}

TEST_CASE("of writers that must not replace each other one wins") {
  const TestFolder folder;
  std::atomic<int> winners{0};
  std::vector<std::thread> writers;
  for (int i = 0; i < 8; ++i) {
    writers.emplace_back([&, i] {
      try {
        write_file_atomically(folder / "file", std::string(1000, static_cast<char>('a' + i)),
                              Existing::kRefuse);
        ++winners;
      } catch (const Error&) {
      }
    });
  }
  for (std::thread& writer : writers) writer.join();
  CHECK(winners == 1);
  const std::string text = text_of(folder / "file");
  CHECK(text == std::string(1000, text.at(0)));
  CHECK(folder.num_files() == 1);
}

TEST_CASE("a new file arrives under its name by a rename, and needs no second name") {
  const TestFolder folder;
  folder.write("a", "");
  if (::renameat2(AT_FDCWD, (folder / "a").c_str(), AT_FDCWD, (folder / "b").c_str(),
                  RENAME_NOREPLACE) != 0) {
    MESSAGE("the file system has no RENAME_NOREPLACE");
    return;
  }
  const int watch = ::inotify_init1(IN_NONBLOCK | IN_CLOEXEC);
  REQUIRE(watch >= 0);
  REQUIRE(::inotify_add_watch(watch, folder.path().c_str(), IN_CREATE | IN_MOVED_TO) >= 0);
  write_file_atomically(folder / "file", "text", Existing::kRefuse);
  std::vector<std::string> created;
  std::vector<std::string> moved;
  alignas(inotify_event) std::array<char, 4096> buffer{};
  const ssize_t size = ::read(watch, buffer.data(), buffer.size());
  for (ssize_t at = 0; at < size;) {
    const auto* event = reinterpret_cast<const inotify_event*>(buffer.data() + at);
    ((event->mask & IN_CREATE) != 0 ? created : moved).emplace_back(event->name);
    at += static_cast<ssize_t>(sizeof(inotify_event) + event->len);
  }
  ::close(watch);
  CHECK(moved == std::vector<std::string>{"file"});
  CHECK(std::find(created.begin(), created.end(), "file") == created.end());
}

TEST_CASE("what could not be replaced is known before there is anything to write") {
  const TestFolder folder;
  const fs::path path = folder / "file";
  check_replaceable(path);
  CHECK(folder.num_files() == 0);
  CHECK_THROWS_WITH_AS(check_replaceable(folder.path()), doctest::Contains("it is a folder"),
                       Error);
  CHECK_THROWS_WITH_AS(check_replaceable(folder / "none/file"), doctest::Contains("no folder"),
                       Error);
  write_file_atomically(path, "mine");
  check_replaceable(path);
  CHECK_THROWS_WITH_AS(check_replaceable(path / "file"), doctest::Contains("is not a folder"),
                       Error);
  fs::permissions(path, fs::perms::owner_read);
  CHECK_THROWS_WITH_AS(check_replaceable(path), doctest::Contains("the file is read-only"), Error);
  CHECK_THROWS_AS(write_file_atomically(path, "yours"), Error);
  CHECK(text_of(path) == "mine");
  CHECK(folder.num_files() == 1);
}

TEST_CASE("a target that cannot be written leaves nothing behind") {
  const TestFolder folder;
  CHECK_THROWS_AS(write_file_atomically(folder / "none/file", "text"), Error);
  fs::create_directories(folder / "taken/inside");
  CHECK_THROWS_AS(write_file_atomically(folder / "taken", "text"), Error);
  CHECK(folder.num_files() == 1);
}

}  // namespace attnbench
