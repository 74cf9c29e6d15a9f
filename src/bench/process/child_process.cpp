// fork, and a socket between the two. The child never returns into the code of its parent.
#include "bench/process/child_process.h"

#include <poll.h>
#include <signal.h>
#include <sys/prctl.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cerrno>
#include <cstdio>
#include <cstring>
#include <exception>
#include <iostream>
#include <utility>

#include "core/error.h"
#include "core/system/printable.h"

namespace attnbench {
namespace {

constexpr int kUncaught = 70;  // exit status of a child whose work threw

}  // namespace

void be_child(const ChildWork& work, int socket, pid_t parent) {
  setpgid(0, 0);
  prctl(PR_SET_PDEATHSIG, SIGKILL);
  if (getppid() != parent) _exit(0);  // the parent died before the line above
  ::signal(SIGPIPE, SIG_IGN);
  // Why: what a user's library prints is not part of a result file on stdout.
  ::dup2(STDERR_FILENO, STDOUT_FILENO);
  int status = 0;
  try {
    ParentLink link(socket);
    work(link);
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

void ParentLink::send(char kind, const std::string& text, int file) const {
  if (!send_message(socket_, kind, text, file)) _exit(0);
}

Message ParentLink::receive() {
  Message message;
  for (;;) {
    switch (reader_.read(socket_, message)) {
      case MessageReader::Read::kMessage:
        return message;
      case MessageReader::Read::kNothingYet:
        break;
      case MessageReader::Read::kEnded:
        _exit(0);
    }
  }
}

ChildProcess::ChildProcess(const ChildWork& work) {
  SocketPair ends;
  std::cout.flush();
  std::cerr.flush();
  std::fflush(nullptr);
  const pid_t parent = getpid();
  pid_ = fork();
  if (pid_ == 0) {
    ends.ours = Descriptor();
    be_child(work, ends.theirs.get(), parent);
  }
  if (pid_ < 0) fail(ErrorKind::kInternal, "no child process: {}", std::strerror(errno));
  socket_ = std::move(ends.ours);
}

ChildProcess::ChildProcess(pid_t pid, Descriptor socket) : pid_(pid), socket_(std::move(socket)) {}

ChildProcess::~ChildProcess() {
  kill();
  how_it_ended();
}

ChildProcess::Read ChildProcess::read(Message& message, int wait_ms) {
  if (reader_.take(message)) return Read::kMessage;
  pollfd waiting{socket_.get(), POLLIN, 0};
  const int ready = ::poll(&waiting, 1, gone_ ? 0 : wait_ms);
  if (ready <= 0 && gone_) return Read::kEnded;
  if (ready <= 0) {
    // Why: a process that the child left behind may hold the socket, which then has no end. What
    // the child sent is read first.
    gone_ = is_gone();
    return Read::kNothingYet;
  }
  return reader_.read(socket_.get(), message);
}

void ChildProcess::answer(char kind, const std::string& text) const {
  // A child that waits for its answer has read those before. One that has not would hold up who
  // answers for ever.
  pollfd room{socket_.get(), POLLOUT, 0};
  if (::poll(&room, 1, 0) != 1) {
    if (!wait_status_) ::kill(-pid_, SIGKILL);
    return;
  }
  // Why no matter whether it arrives: a child that is gone is noticed by what is read of it.
  send_message(socket_.get(), kind, text);
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
