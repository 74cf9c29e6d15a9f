// A forked child that sends framed messages to its parent. It knows nothing of jobs;
// isolated_jobs.h gives kinds and texts their meaning.
//
// A child rather than a thread, because what is run may be a user's library or a faulty kernel:
// only a process can be killed, and only its end returns a device that met an error.
#pragma once

#include <sys/types.h>

#include <functional>
#include <optional>
#include <string>

namespace attnbench {

/// One message: a kind and a text of any bytes.
struct Message {
  char kind = 0;
  std::string text;
};

/// The child's end of the pipe.
class MessageWriter {
 public:
  explicit MessageWriter(int fd) : fd_(fd) {}
  /// Ends the process when the parent is gone.
  void send(char kind, const std::string& text) const;

 private:
  int fd_;
};

/// Forks at construction; `work` is all that the child does. The child has a process group of its
/// own (Ctrl-C on the terminal reaches only the parent) and dies with the parent.
class ChildProcess {
 public:
  /// Errors: E-INTERNAL when the system refuses a pipe or a process.
  explicit ChildProcess(const std::function<void(const MessageWriter&)>& work);
  /// Kills a child that still runs.
  ~ChildProcess();
  ChildProcess(const ChildProcess&) = delete;
  ChildProcess& operator=(const ChildProcess&) = delete;

  enum class Read { kMessage, kNothingYet, kEnded };
  /// Waits up to `wait_ms` for a message. kEnded: the child is gone and has sent no more, whoever
  /// else may hold its end of the pipe.
  Read read(Message& message, int wait_ms);
  void signal(int number) const;
  void kill();
  /// After kEnded or kill(): ends what the child has left behind, and tells how it ended: "" (exit
  /// status 0), "exit status 3", "signal 11 (Segmentation fault)".
  std::string how_it_ended();

 private:
  bool take_message(Message& message);
  bool is_gone() const;

  pid_t pid_ = -1;
  int fd_ = -1;
  std::string received_;
  bool gone_ = false;  // the child, but not all that it sent was read
  std::optional<int> wait_status_;
};

}  // namespace attnbench
