// What the thread sanitizer has to know of device code on emulated threads: every one of them is a
// thread of its own, whose accesses to shared and device memory are ordered by nothing but the
// barriers of the device. So a program that is compiled with -fsanitize=thread and
// ATTNBENCH_FIND_RACES reports a race of the kernel's threads, whatever the order in which the
// emulation runs them: compute-sanitizer's racecheck does not follow mbarriers. Without that all of
// this is nothing.
//
// What orders: barriers of threads, mbarriers from an arrival to a wait, copies of the copy engine
// from their request to the end of a wait for their bytes, counts of the grid that acquire and
// release, and whatever all lanes of a warp do together (shuffles, votes, products). PTX promises
// that of the last only for __syncwarp(), and racecheck reports what relies on it; the device
// issues a warp's accesses in their order, so that lanes are apart only where they diverge. Not
// modelled: fences between ordinary accesses and those of the copy engine. An mbarrier's wait is
// ordered behind all arrivals so far, those of later phases too.
#pragma once

#include <exception>
#include <functional>
#include <utility>

#include "ops/cuda/testing/fiber_testing.h"

#ifdef ATTNBENCH_FIND_RACES
#include <sanitizer/tsan_interface.h>
extern "C" {
void AnnotateIgnoreReadsBegin(const char* file, int line);
void AnnotateIgnoreReadsEnd(const char* file, int line);
void AnnotateIgnoreWritesBegin(const char* file, int line);
void AnnotateIgnoreWritesEnd(const char* file, int line);
}
#endif

namespace attnbench::cuda {

#ifdef ATTNBENCH_FIND_RACES
constexpr bool kFindsRaces = true;

/// While it lives, accesses of the thread are the emulation's own, and no races.
class OwnAccesses {
 public:
  OwnAccesses() {
    AnnotateIgnoreReadsBegin(__FILE__, __LINE__);
    AnnotateIgnoreWritesBegin(__FILE__, __LINE__);
  }
  OwnAccesses(const OwnAccesses&) = delete;
  OwnAccesses& operator=(const OwnAccesses&) = delete;
  ~OwnAccesses() {
    AnnotateIgnoreWritesEnd(__FILE__, __LINE__);
    AnnotateIgnoreReadsEnd(__FILE__, __LINE__);
  }
};
/// What the thread has done so far comes before what others do after they observe `place`.
inline void publish_to(const void* place) { __tsan_release(const_cast<void*>(place)); }
inline void observe(const void* place) { __tsan_acquire(const_cast<void*>(place)); }

/// A thread of its own that works while another lets it.
class Agent {
 public:
  /// Errors: what `work` throws.
  void act(const std::function<void()>& work) {
    const OwnAccesses own;
    if (!has_begun_) fiber_.begin(&Agent::start);
    has_begun_ = true;
    work_ = &work;
    Agent* const before = std::exchange(acting, this);
    fiber_.enter();
    acting = before;
    if (error_ != nullptr) std::rethrow_exception(std::exchange(error_, nullptr));
  }

 private:
  static void start() {
    for (;;) {
      Agent* self = nullptr;
      const std::function<void()>* work = nullptr;
      {
        const OwnAccesses own;
        self = acting;
        work = self->work_;
      }
      try {
        (*work)();
      } catch (...) {
        self->error_ = std::current_exception();
      }
      self->fiber_.leave();
    }
  }
  inline static Agent* acting = nullptr;
  Fiber fiber_;
  bool has_begun_ = false;
  const std::function<void()>* work_ = nullptr;
  std::exception_ptr error_;
};

#else
constexpr bool kFindsRaces = false;

class OwnAccesses {
 public:
  OwnAccesses() {}  // not defaulted: an object that nobody reads is no unused variable
};
inline void publish_to(const void*) {}
inline void observe(const void*) {}
class Agent {
 public:
  void act(const std::function<void()>& work) { work(); }
};

#endif

}  // namespace attnbench::cuda
