// Work that becomes known bit by bit, on threads that take it in the order in which it was added.
//
// For loops whose length is known there is ThreadPool (parallel.h), where the caller works too.
// Here the caller goes on finding work, or does something else. Kernels are compiled so: to find
// out which ones a suite needs takes as long as to compile some of them.
#pragma once

#include <functional>
#include <memory>

namespace attnbench {

class WorkQueue {
 public:
  /// Starts the threads, at least one. They have the priority that the caller has now: to let
  /// others go first, whoever makes a queue lowers its own before.
  explicit WorkQueue(int num_threads);
  /// Drops what was not begun, and waits for the rest; what that throws is lost. finish() first
  /// where all of it matters.
  ~WorkQueue();
  WorkQueue(const WorkQueue&) = delete;
  WorkQueue& operator=(const WorkQueue&) = delete;

  int num_threads() const;

  /// For some thread to do after what was added before has been taken. Work that throws makes the
  /// queue drop everything that was not begun, now and later.
  void add(std::function<void()> work);

  /// Waits until all is done that was added; more may be added then. The first exception of a piece
  /// of work is thrown again here, at every call.
  void finish();

 private:
  // The threads, and what they share.
  struct State;
  std::unique_ptr<State> state_;
};

}  // namespace attnbench
