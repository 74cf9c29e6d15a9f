// fork, a pipe and frames on it: one byte of kind, eight of length, the text. The child never
// returns into the code of its parent.
#include "bench/loop/child_process.h"

#include <fcntl.h>
#include <poll.h>
#include <signal.h>
#include <sys/prctl.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cerrno>
#include <cstdint>
#include <cstdio>
#include <cstring>
#include <exception>
#include <iostream>

#include "core/error.h"
#include "core/system/printable.h"

namespace attnbench {
namespace {

constexpr std::size_t kHeaderSize = 1 + sizeof(std::uint64_t);
constexpr int kUncaught = 70;  // exit status of a child whose work threw

void write_all(int fd, const char* bytes, std::size_t count) {
  while (count > 0) {
    const ssize_t written = ::write(fd, bytes, count);
    if (written < 0 && errno == EINTR) continue;
    if (written <= 0) _exit(0);
    bytes += written;
    count -= static_cast<std::size_t>(written);
  }
}

[[noreturn]] void run_child(const std::function<void(const MessageWriter&)>& work, int fd,
                            pid_t parent) {
  setpgid(0, 0);
  prctl(PR_SET_PDEATHSIG, SIGKILL);
  if (getppid() != parent) _exit(0);  // the parent died before the line above
  ::signal(SIGPIPE, SIG_IGN);
  // Why: what a user's library prints is not part of a result file on stdout.
  ::dup2(STDERR_FILENO, STDOUT_FILENO);
  int status = 0;
  try {
    work(MessageWriter(fd));
  } catch (const std::exception& error) {
    std::fprintf(stderr, "attnbench: %s\n", error.what());
    status = kUncaught;
  }
  std::cout.flush();
  std::cerr.flush();
  std::fflush(stdout);
  // Why not exit(): the parent's buffers and static objects were copied and are not the child's.
  _exit(status);
}

}  // namespace

void MessageWriter::send(char kind, const std::string& text) const {
  const std::uint64_t size = text.size();
  std::string frame(kHeaderSize, kind);
  std::memcpy(frame.data() + 1, &size, sizeof size);
  frame += text;
  write_all(fd_, frame.data(), frame.size());
}

ChildProcess::ChildProcess(const std::function<void(const MessageWriter&)>& work) {
  int ends[2];
  if (::pipe2(ends, O_CLOEXEC) != 0) {
    fail(ErrorKind::kInternal, "no pipe: {}", std::strerror(errno));
  }
  std::cout.flush();
  std::cerr.flush();
  std::fflush(nullptr);
  const pid_t parent = getpid();
  pid_ = fork();
  if (pid_ == 0) {
    ::close(ends[0]);
    run_child(work, ends[1], parent);
  }
  ::close(ends[1]);
  fd_ = ends[0];
  if (pid_ < 0) {
    ::close(fd_);
    fail(ErrorKind::kInternal, "no child process: {}", std::strerror(errno));
  }
}

ChildProcess::~ChildProcess() {
  kill();
  how_it_ended();
  ::close(fd_);
}

bool ChildProcess::take_message(Message& message) {
  if (received_.size() < kHeaderSize) return false;
  std::uint64_t size = 0;
  std::memcpy(&size, received_.data() + 1, sizeof size);
  if (received_.size() - kHeaderSize < size) return false;
  message = {received_[0], received_.substr(kHeaderSize, size)};
  received_.erase(0, kHeaderSize + size);
  return true;
}

ChildProcess::Read ChildProcess::read(Message& message, int wait_ms) {
  if (take_message(message)) return Read::kMessage;
  pollfd waiting{fd_, POLLIN, 0};
  const int ready = ::poll(&waiting, 1, gone_ ? 0 : wait_ms);
  if (ready <= 0 && gone_) return Read::kEnded;
  if (ready <= 0) {
    // Why: a process that the child left behind may hold the pipe, which then has no end. What the
    // child sent is read first.
    gone_ = is_gone();
    return Read::kNothingYet;
  }
  char bytes[65536];
  const ssize_t count = ::read(fd_, bytes, sizeof bytes);
  if (count < 0 && errno == EINTR) return Read::kNothingYet;
  if (count <= 0) return Read::kEnded;
  received_.append(bytes, static_cast<std::size_t>(count));
  return take_message(message) ? Read::kMessage : Read::kNothingYet;
}

bool ChildProcess::is_gone() const {
  siginfo_t info{};
  // Why WNOWAIT: a process keeps its number until its status is taken, so that no other process has
  // it.
  const int found = waitid(P_PID, static_cast<id_t>(pid_), &info, WEXITED | WNOHANG | WNOWAIT);
  return found == 0 && info.si_pid == pid_;
}

void ChildProcess::signal(int number) const {
  if (!wait_status_) ::kill(pid_, number);
}

void ChildProcess::kill() {
  if (wait_status_) return;
  ::kill(-pid_, SIGKILL);  // what the child started as well
  ::kill(pid_, SIGKILL);   // it may not have made its group yet
}

std::string ChildProcess::how_it_ended() {
  while (!wait_status_) {
    siginfo_t info{};
    const int waited = waitid(P_PID, static_cast<id_t>(pid_), &info, WEXITED | WNOWAIT);
    if (waited != 0 && errno == EINTR) continue;
    ::kill(-pid_, SIGKILL);  // what it left behind
    int status = 0;
    if (waitpid(pid_, &status, 0) == pid_ || errno == ECHILD) wait_status_ = status;
  }
  return *wait_status_ == 0 ? "" : describe_wait_status(*wait_status_);
}

}  // namespace attnbench
