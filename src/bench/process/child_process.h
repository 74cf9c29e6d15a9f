// A forked child that talks with its parent in framed messages. It knows nothing of jobs;
// loop/isolated_jobs.h gives kinds and texts their meaning.
//
// A child rather than a thread, because what is run may be a user's library or a faulty kernel:
// only a process can be killed, and only its end returns a device that met an error.
#pragma once

#include <sys/types.h>

#include <functional>
#include <optional>
#include <string>

#include "bench/process/frames.h"

namespace attnbench {

/// The child's end of the conversation.
class ParentLink {
 public:
  explicit ParentLink(int socket) : socket_(socket) {}
  /// Ends the process when the parent is gone. `file`: a descriptor that goes with it; -1 = none.
  void send(char kind, const std::string& text, int file = -1) const;
  /// Waits for a message of the parent. Ends the process when the parent is gone.
  Message receive();

 private:
  int socket_;
  MessageReader reader_;
};

/// All that a child does.
using ChildWork = std::function<void(ParentLink&)>;

/// What a process does that was forked to be a child of `parent`: leaves with the status of `work`.
/// It has a process group of its own (Ctrl-C on the terminal reaches only the parent) and dies with
/// the parent.
[[noreturn]] void be_child(const ChildWork& work, int socket, pid_t parent);

/// A child and what it says.
class ChildProcess {
 public:
  /// Forks here. Errors: E-INTERNAL when the system refuses a socket or a process.
  explicit ChildProcess(const ChildWork& work);
  /// Takes over a child of this process, with our end of its socket.
  ChildProcess(pid_t pid, Descriptor socket);
  /// Kills a child that still runs.
  ~ChildProcess();
  ChildProcess(const ChildProcess&) = delete;
  ChildProcess& operator=(const ChildProcess&) = delete;

  using Read = MessageReader::Read;
  /// Waits up to `wait_ms` for a message. kEnded: the child is gone and has sent no more, whoever
  /// else may hold its end of the socket.
  Read read(Message& message, int wait_ms);
  /// Sends a message to a child that waits for it.
  void answer(char kind, const std::string& text) const;
  pid_t pid() const { return pid_; }
  void signal(int number) const;
  void kill();
  /// After kEnded or kill(): ends what the child has left behind, and tells how it ended: "" (exit
  /// status 0), "exit status 3", "signal 11 (Segmentation fault)".
  std::string how_it_ended();

 private:
  bool is_gone() const;

  pid_t pid_ = -1;
  Descriptor socket_;
  MessageReader reader_;
  bool gone_ = false;  // the child, but not all that it sent was read
  std::optional<int> wait_status_;
};

}  // namespace attnbench
