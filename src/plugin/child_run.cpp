#include "plugin/child_run.h"

#include <array>
#include <cerrno>
#include <chrono>
#include <cstdio>
#include <cstring>
#include <iostream>
#include <thread>

#include <fcntl.h>
#include <fmt/format.h>
#include <poll.h>
#include <signal.h>
#include <spawn.h>
#include <sys/prctl.h>
#include <sys/wait.h>
#include <unistd.h>

#include "core/error.h"
#include "core/system/printable.h"
#include "plugin/plugin_call.h"

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

namespace {

void write_all(int fd, const std::string& text) {
  for (std::size_t at = 0; at < text.size();) {
    const ssize_t count = ::write(fd, text.data() + at, text.size() - at);
    if (count < 0 && errno == EINTR) continue;
    if (count <= 0) _exit(1);
    at += static_cast<std::size_t>(count);
  }
}

/// Sends the length of what `work` returned, and that: it may leave by exit(0) before.
[[noreturn]] void run_child(const std::function<std::string()>& work, int fd) {
  send_stdout_to_stderr();
  const std::string text = work();
  std::fflush(nullptr);
  const std::uint64_t size = text.size();
  write_all(fd, std::string(reinterpret_cast<const char*>(&size), sizeof size) + text);
  _exit(0);
}

/// What a child sends, read as it comes: a process that it left behind may hold the other end.
class Answer {
 public:
  /// Takes what is there, waiting for `wait_ms`; whether there was something.
  bool read_some(int fd, int wait_ms) {
    pollfd waiting{fd, POLLIN, 0};
    std::array<char, 65536> bytes;
    if (::poll(&waiting, 1, wait_ms) <= 0) return false;
    const ssize_t count = ::read(fd, bytes.data(), bytes.size());
    if (count > 0) received_.append(bytes.data(), static_cast<std::size_t>(count));
    // Its end is closed: the process ends in a moment, or not at all.
    if (count <= 0) std::this_thread::sleep_for(std::chrono::milliseconds(wait_ms));
    return count > 0;
  }
  bool is_complete() const {
    std::uint64_t size = 0;
    if (received_.size() < sizeof size) return false;
    std::memcpy(&size, received_.data(), sizeof size);
    return received_.size() - sizeof size == size;
  }
  std::string text() const { return received_.substr(sizeof(std::uint64_t)); }

 private:
  std::string received_;
};

}  // namespace

TrialOutput trial_output(const std::function<std::string()>& work, double limit_s) {
  // Why polled: a wait with a time limit would need a signal handler, which is the caller's to set.
  constexpr int kPollMs = 2;
  // What is in the buffers now would be printed by the child, too.
  std::cout.flush();
  std::cerr.flush();
  std::fflush(nullptr);
  int ends[2];
  if (::pipe2(ends, O_CLOEXEC) != 0) {
    fail(ErrorKind::kInternal, "no pipe: {}", std::strerror(errno));
  }
  const pid_t parent = getpid();
  const pid_t child = fork();
  if (child < 0) fail(ErrorKind::kInternal, "no child process: {}", std::strerror(errno));
  if (child == 0) {
    // What hangs would outlive a parent that is killed while it waits.
    prctl(PR_SET_PDEATHSIG, SIGKILL);
    if (getppid() != parent) _exit(0);
    ::close(ends[0]);
    run_child(work, ends[1]);
  }
  ::close(ends[1]);
  const auto end = Clock::now() + std::chrono::duration<double>(limit_s);
  Answer answer;
  TrialOutput output;
  for (;;) {
    answer.read_some(ends[0], kPollMs);
    int status = 0;
    const pid_t ended = waitpid(child, &status, WNOHANG);
    // Without a child to wait for (SIGCHLD is ignored) its answer is all that there is.
    const bool is_gone = ended == child || (ended < 0 && errno != EINTR);
    if (is_gone) {
      while (!answer.is_complete() && answer.read_some(ends[0], 0)) {
      }
      const bool is_right = status == 0 && answer.is_complete();
      if (is_right) output.text = answer.text();
      if (!is_right) output.trouble = describe_wait_status(status);
      break;
    }
    if (limit_s > 0 && Clock::now() > end) {
      ::kill(child, SIGKILL);
      waitpid(child, &status, 0);
      output.trouble = fmt::format("no end after {:g} s", limit_s);
      output.hangs = true;
      break;
    }
  }
  ::close(ends[0]);
  return output;
}

std::string trial_run(const std::function<void()>& work, double limit_s) {
  const auto silent = [&] {
    try {
      work();
    } catch (...) {  // the caller does the same work and reports it
    }
    return std::string();
  };
  return trial_output(silent, limit_s).trouble;
}

}  // namespace attnbench
