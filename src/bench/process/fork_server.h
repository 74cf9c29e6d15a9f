// Forks children from a process that was made before anything was opened.
//
// A process that has opened a device, or has threads that hold locks, cannot fork a child that uses
// them. Whoever judges wants both. So a process is forked while there is neither, and does nothing
// but fork on request; its children become those of the process that has the server.
#pragma once

#include <sys/types.h>

#include <functional>
#include <string>

#include "bench/process/child_process.h"
#include "bench/process/frames.h"

namespace attnbench {

class ForkServer {
 public:
  /// What a child does about an order. It sees this process as it was when the server was made.
  using Work = std::function<void(const std::string& order, ParentLink& link)>;

  /// Forks the server, which dies with this process. Makes this process the one that orphans of its
  /// descendants come to. Errors: E-INTERNAL when the system refuses.
  explicit ForkServer(Work work);
  ~ForkServer();
  ForkServer(const ForkServer&) = delete;
  ForkServer& operator=(const ForkServer&) = delete;

  struct Child {
    pid_t pid;
    Descriptor socket;
  };
  /// A child of this process. Errors: E-INTERNAL.
  Child fork_child(const std::string& order);

 private:
  Descriptor socket_;
  pid_t pid_ = -1;
  bool was_subreaper_ = false;
};

}  // namespace attnbench
