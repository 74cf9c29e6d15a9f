// fork and two pipes: a byte asks for a measurement, the struct comes back. The child never returns
// into the code of its parent.
#include "bench/loop/ceiling_meter.h"

#include <fcntl.h>
#include <signal.h>
#include <sys/prctl.h>
#include <sys/wait.h>
#include <unistd.h>

#include <array>
#include <cerrno>
#include <cstring>
#include <iostream>

#include "core/error.h"

namespace attnbench {
namespace {

/// False when the other end is closed.
bool read_all(int fd, void* bytes, std::size_t count) {
  auto* at = static_cast<char*>(bytes);
  while (count > 0) {
    const ssize_t done = ::read(fd, at, count);
    if (done < 0 && errno == EINTR) continue;
    if (done <= 0) return false;
    at += done;
    count -= static_cast<std::size_t>(done);
  }
  return true;
}

[[noreturn]] void serve(int requests, int answers, pid_t parent,
                        const std::function<CpuCeilings()>& measure) {
  setpgid(0, 0);  // Ctrl-C on the terminal reaches only the parent
  prctl(PR_SET_PDEATHSIG, SIGKILL);
  if (getppid() != parent) _exit(0);
  ::signal(SIGPIPE, SIG_IGN);
  CpuCeilings best;
  char request = 0;
  while (read_all(requests, &request, 1)) {
    try {
      best = best_of(best, measure());
    } catch (const std::exception&) {
      // What could not be measured is no ceiling.
    }
    if (::write(answers, &best, sizeof best) != sizeof best) break;
  }
  _exit(0);
}

void make_pipe(std::array<int, 2>& ends) {
  if (::pipe2(ends.data(), O_CLOEXEC) != 0) {
    fail(ErrorKind::kInternal, "no pipe: {}", std::strerror(errno));
  }
}

}  // namespace

CeilingMeter::CeilingMeter(const std::function<CpuCeilings()>& measure) : owner_(getpid()) {
  std::array<int, 2> requests{};
  std::array<int, 2> answers{};
  make_pipe(requests);
  make_pipe(answers);
  std::cout.flush();
  std::cerr.flush();
  pid_ = fork();
  if (pid_ == 0) {
    ::close(requests[1]);
    ::close(answers[0]);
    serve(requests[0], answers[1], owner_, measure);
  }
  ::close(requests[0]);
  ::close(answers[1]);
  requests_ = requests[1];
  answers_ = answers[0];
  if (pid_ < 0) fail(ErrorKind::kInternal, "no child process: {}", std::strerror(errno));
}

CeilingMeter::~CeilingMeter() {
  ::close(requests_);
  ::close(answers_);
  if (getpid() != owner_ || pid_ < 0) return;
  ::kill(pid_, SIGKILL);
  while (::waitpid(pid_, nullptr, 0) < 0 && errno == EINTR) {
  }
}

CpuCeilings CeilingMeter::measure() {
  // Why blocked: a child that is gone must end as "not measured", not end this process.
  sigset_t pipe_signal;
  sigset_t before;
  sigemptyset(&pipe_signal);
  sigaddset(&pipe_signal, SIGPIPE);
  pthread_sigmask(SIG_BLOCK, &pipe_signal, &before);
  const char request = 'm';
  CpuCeilings ceilings;
  const bool sent = ::write(requests_, &request, 1) == 1;
  if (!sent || !read_all(answers_, &ceilings, sizeof ceilings)) ceilings = {};
  const timespec at_once{};
  while (!sent && sigtimedwait(&pipe_signal, nullptr, &at_once) < 0 && errno == EINTR) {
  }
  pthread_sigmask(SIG_SETMASK, &before, nullptr);
  return ceilings;
}

}  // namespace attnbench
