#include "plugin/trial_run.h"

#include <signal.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cerrno>
#include <chrono>
#include <cstdio>
#include <cstring>
#include <iostream>
#include <thread>

#include "core/error.h"

namespace attnbench {
namespace {

[[noreturn]] void run_child(const std::function<void()>& work) {
  try {
    work();
  } catch (...) {  // the parent does the same work and reports it
  }
  std::fflush(nullptr);
  _exit(0);
}

std::string describe(int status) {
  if (WIFSIGNALED(status)) {
    return fmt::format("signal {} ({})", WTERMSIG(status), strsignal(WTERMSIG(status)));
  }
  return WEXITSTATUS(status) == 0 ? "" : fmt::format("exit status {}", WEXITSTATUS(status));
}

}  // namespace

std::string trial_run(const std::function<void()>& work, double limit_s) {
  constexpr std::chrono::milliseconds kPoll{2};
  std::cout.flush();
  std::cerr.flush();
  std::fflush(nullptr);
  const pid_t child = fork();
  if (child < 0) fail(ErrorKind::kInternal, "no child process: {}", std::strerror(errno));
  if (child == 0) run_child(work);
  const auto end = std::chrono::steady_clock::now() + std::chrono::duration<double>(limit_s);
  int status = 0;
  for (;;) {
    const pid_t ended = waitpid(child, &status, WNOHANG);
    if (ended == child) return describe(status);
    if (ended < 0 && errno != EINTR) return "";
    if (std::chrono::steady_clock::now() > end) break;
    std::this_thread::sleep_for(kPoll);
  }
  ::kill(child, SIGKILL);
  waitpid(child, &status, 0);
  return fmt::format("no end after {:.0f} s", limit_s);
}

}  // namespace attnbench
