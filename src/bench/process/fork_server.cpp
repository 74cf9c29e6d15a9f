// The server forks twice: the process in the middle ends at once, so that its child is an orphan,
// which the system gives to the nearest ancestor that takes orphans, the process that has the
// server.
#include "bench/process/fork_server.h"

#include <signal.h>
#include <sys/prctl.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

#include <cerrno>
#include <cstdio>
#include <cstring>
#include <iostream>
#include <utility>

#include "core/error.h"

namespace attnbench {
namespace {

constexpr char kOrder = 'O';
constexpr char kForked = 'F';  // the text is the child's number, or empty

void reap(pid_t pid) {
  while (waitpid(pid, nullptr, 0) < 0 && errno == EINTR) {
  }
}

/// Until the process in the middle is gone; false where the wrong one took the orphan.
bool wait_for_parent(pid_t parent) {
  constexpr timespec kPause{0, 200'000};
  for (int i = 0; i < 50'000; ++i) {
    if (getppid() == parent) return true;
    nanosleep(&kPause, nullptr);
  }
  return false;
}

/// In the server. The child's number; 0 where there is none.
pid_t fork_twice(const std::function<void()>& child) {
  int ends[2];
  if (::pipe(ends) != 0) return 0;
  const pid_t middle = fork();
  if (middle == 0) {
    const pid_t pid = fork();
    if (pid == 0) {
      ::close(ends[0]);
      ::close(ends[1]);
      child();
    }
    const bool sent = ::write(ends[1], &pid, sizeof pid) == sizeof pid;
    _exit(sent ? 0 : 1);
  }
  ::close(ends[1]);
  pid_t pid = 0;
  if (middle > 0) {
    reap(middle);
    if (::read(ends[0], &pid, sizeof pid) != sizeof pid) pid = 0;
  }
  ::close(ends[0]);
  return pid > 0 ? pid : 0;
}

[[noreturn]] void serve(const ForkServer::Work& work, int socket, pid_t owner) {
  setpgid(0, 0);
  prctl(PR_SET_PDEATHSIG, SIGKILL);
  // An orphan of this process is the owner's.
  prctl(PR_SET_CHILD_SUBREAPER, 0);
  if (getppid() != owner) _exit(0);
  MessageReader reader;
  for (;;) {
    Message message;
    const MessageReader::Read read = reader.read(socket, message);
    if (read == MessageReader::Read::kEnded) _exit(0);
    if (read == MessageReader::Read::kNothingYet) continue;
    const pid_t pid = fork_twice([&] {
      ::close(socket);
      if (!wait_for_parent(owner)) _exit(1);
      be_child([&](ParentLink& link) { work(message.text, link); }, message.file.get(), owner);
    });
    if (!send_message(socket, kForked, pid > 0 ? std::to_string(pid) : "")) _exit(0);
  }
}

}  // namespace

ForkServer::ForkServer(Work work) {
  SocketPair ends;
  int was_subreaper = 0;
  prctl(PR_GET_CHILD_SUBREAPER, &was_subreaper);
  was_subreaper_ = was_subreaper != 0;
  if (prctl(PR_SET_CHILD_SUBREAPER, 1) != 0) {
    fail(ErrorKind::kInternal, "no subreaper: {}", std::strerror(errno));
  }
  std::cout.flush();
  std::cerr.flush();
  std::fflush(nullptr);
  const pid_t owner = getpid();
  pid_ = fork();
  if (pid_ == 0) {
    ends.ours = Descriptor();
    serve(work, ends.theirs.get(), owner);
  }
  if (pid_ < 0) fail(ErrorKind::kInternal, "no child process: {}", std::strerror(errno));
  socket_ = std::move(ends.ours);
}

ForkServer::~ForkServer() {
  ::kill(pid_, SIGKILL);
  reap(pid_);
  if (!was_subreaper_) prctl(PR_SET_CHILD_SUBREAPER, 0);
}

ForkServer::Child ForkServer::fork_child(const std::string& order) {
  SocketPair ends;
  std::cout.flush();
  std::cerr.flush();
  std::fflush(nullptr);
  bool works = send_message(socket_.get(), kOrder, order, ends.theirs.get());
  MessageReader reader;
  Message message;
  auto read = MessageReader::Read::kNothingYet;
  while (works && read == MessageReader::Read::kNothingYet) {
    read = reader.read(socket_.get(), message);
  }
  works = works && read == MessageReader::Read::kMessage && !message.text.empty();
  if (!works) fail(ErrorKind::kInternal, "no child process: the process that forks them has ended");
  return {static_cast<pid_t>(std::stol(message.text)), std::move(ends.ours)};
}

}  // namespace attnbench
