#include "plugin/trial_run.h"

#include <fcntl.h>
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
#include "core/wait_status.h"
#include "plugin/plugin_call.h"

namespace attnbench {
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
  constexpr std::chrono::milliseconds kPoll{2};
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
    if (ended < 0 && errno != EINTR) return "";
    if (std::chrono::steady_clock::now() > end) break;
    std::this_thread::sleep_for(kPoll);
  }
  ::kill(child, SIGKILL);
  waitpid(child, &status, 0);
  return fmt::format("no end after {:.0f} s", limit_s);
}

}  // namespace attnbench
