#include "plugin/run_program.h"

#include <fcntl.h>
#include <fmt/format.h>
#include <poll.h>
#include <signal.h>
#include <spawn.h>
#include <sys/wait.h>
#include <unistd.h>

#include <array>
#include <cerrno>
#include <chrono>
#include <cstring>

#include "core/error.h"
#include "core/wait_status.h"

namespace attnbench {
namespace {

using Clock = std::chrono::steady_clock;

/// Reads until the other end is closed; false when `end` comes first.
bool read_until(int fd, Clock::time_point end, std::string& text) {
  std::array<char, 4096> bytes;
  for (;;) {
    const auto left = std::chrono::duration_cast<std::chrono::milliseconds>(end - Clock::now());
    pollfd waiting{fd, POLLIN, 0};
    if (left.count() <= 0) return false;
    if (::poll(&waiting, 1, static_cast<int>(left.count())) <= 0) continue;
    const ssize_t count = ::read(fd, bytes.data(), bytes.size());
    if (count == 0) return true;
    if (count > 0) text.append(bytes.data(), static_cast<std::size_t>(count));
  }
}

/// Starts `argv` with `out` as its stdout. 0, or the error.
int start(const std::vector<std::string>& argv, int out, pid_t& pid) {
  std::vector<char*> words;
  for (const std::string& word : argv) words.push_back(const_cast<char*>(word.c_str()));
  words.push_back(nullptr);
  posix_spawn_file_actions_t actions;
  posix_spawn_file_actions_init(&actions);
  posix_spawn_file_actions_addopen(&actions, STDIN_FILENO, "/dev/null", O_RDONLY, 0);
  posix_spawn_file_actions_adddup2(&actions, out, STDOUT_FILENO);
  const int error = posix_spawnp(&pid, words[0], &actions, nullptr, words.data(), environ);
  posix_spawn_file_actions_destroy(&actions);
  return error;
}

}  // namespace

ProgramOutput run_program(const std::vector<std::string>& argv, double limit_s) {
  int ends[2];
  if (::pipe2(ends, O_CLOEXEC) != 0) {
    fail(ErrorKind::kInternal, "no pipe: {}", std::strerror(errno));
  }
  ProgramOutput output;
  pid_t pid = -1;
  const int error = start(argv, ends[1], pid);
  ::close(ends[1]);
  if (error != 0) {
    output.trouble = std::strerror(error);
  } else {
    const auto limit =
        std::chrono::duration_cast<Clock::duration>(std::chrono::duration<double>(limit_s));
    const bool ended = read_until(ends[0], Clock::now() + limit, output.out);
    if (!ended) ::kill(pid, SIGKILL);
    int status = 0;
    while (::waitpid(pid, &status, 0) < 0 && errno == EINTR) {
    }
    output.trouble =
        ended ? describe_wait_status(status) : fmt::format("no end after {:.0f} s", limit_s);
    if (ended && status == 0) output.trouble.clear();
  }
  ::close(ends[0]);
  return output;
}

}  // namespace attnbench
