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

/// Sends a byte when `work` came to its end: it may leave by exit(0).
[[noreturn]] void run_child(const std::function<void()>& work, int fd) {
  send_stdout_to_stderr();
  try {
    work();
  } catch (...) {  // the parent does the same work and reports it
  }
  std::fflush(nullptr);
  const char done = 1;
  _exit(::write(fd, &done, sizeof done) == sizeof done ? 0 : 1);
}

/// Where a child says that it has finished.
class DonePipe {
 public:
  DonePipe() {
    if (::pipe2(ends_, O_CLOEXEC | O_NONBLOCK) != 0) {
      fail(ErrorKind::kInternal, "no pipe: {}", std::strerror(errno));
    }
  }
  ~DonePipe() {
    ::close(ends_[0]);
    ::close(ends_[1]);
  }
  DonePipe(const DonePipe&) = delete;
  DonePipe& operator=(const DonePipe&) = delete;

  int writing_end() const { return ends_[1]; }
  bool is_done() const {
    char byte = 0;
    return ::read(ends_[0], &byte, sizeof byte) == sizeof byte;
  }

 private:
  int ends_[2] = {-1, -1};
};

}  // namespace

std::string trial_run(const std::function<void()>& work, double limit_s) {
  // Why polled: a wait with a time limit would need a signal handler, which is the caller's to set.
  constexpr std::chrono::milliseconds kPoll{2};
  // What is in the buffers now would be printed by the child, too.
  std::cout.flush();
  std::cerr.flush();
  std::fflush(nullptr);
  const DonePipe done;
  const pid_t child = fork();
  if (child < 0) fail(ErrorKind::kInternal, "no child process: {}", std::strerror(errno));
  if (child == 0) run_child(work, done.writing_end());
  const auto end = std::chrono::steady_clock::now() + std::chrono::duration<double>(limit_s);
  int status = 0;
  for (;;) {
    const pid_t ended = waitpid(child, &status, WNOHANG);
    if (ended == child) {
      return status == 0 && done.is_done() ? "" : describe_wait_status(status);
    }
    // Without a child to wait for (SIGCHLD is ignored) nothing is known against the work.
    if (ended < 0 && errno != EINTR) return "";
    if (std::chrono::steady_clock::now() > end) break;
    std::this_thread::sleep_for(kPoll);
  }
  ::kill(child, SIGKILL);
  waitpid(child, &status, 0);
  return fmt::format("no end after {:.0f} s", limit_s);
}

}  // namespace attnbench
