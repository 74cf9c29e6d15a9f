// A function on a stack of its own, which gives up its turn wherever it likes. Where there is
// nothing better by ucontext.h, whose switches save the mask of signals by a system call: half of
// the time of the tests on emulated threads. Sanitizers know only these.
#pragma once

#include <cstddef>
#include <cstdint>
#include <cstring>
#include <memory>
#include <utility>
#include <vector>

#if defined(__SANITIZE_THREAD__) || defined(__SANITIZE_ADDRESS__) || !defined(__x86_64__)
#define ATTNBENCH_FIBERS_BY_UCONTEXT
#elif defined(__has_feature)
#if __has_feature(address_sanitizer) || __has_feature(thread_sanitizer)
#define ATTNBENCH_FIBERS_BY_UCONTEXT
#endif
#endif

#ifdef ATTNBENCH_FIBERS_BY_UCONTEXT
#include <ucontext.h>
#else
/// What the ABI has a function keep goes to the stack, whose end is left in *from; what the stack
/// that ends at `to` has kept comes back.
extern "C" void attnbench_switch_stacks(void** from, void* to);
// As for an inline function: in every object that includes this, once in a program.
asm(R"(
  .pushsection .text.attnbench_switch_stacks,"axG",@progbits,attnbench_switch_stacks,comdat
  .weak attnbench_switch_stacks
  .type attnbench_switch_stacks,@function
attnbench_switch_stacks:
  pushq %rbp
  pushq %rbx
  pushq %r12
  pushq %r13
  pushq %r14
  pushq %r15
  movq %rsp, (%rdi)
  movq %rsi, %rsp
  popq %r15
  popq %r14
  popq %r13
  popq %r12
  popq %rbx
  popq %rbp
  ret
  .size attnbench_switch_stacks, .-attnbench_switch_stacks
  .popsection
)");
#endif
#ifdef __SANITIZE_THREAD__
#include <sanitizer/tsan_interface.h>
#elif defined(ATTNBENCH_FIND_RACES)
#error "races are found by GCC's -fsanitize=thread"
#endif

namespace attnbench::cuda {

/// Stacks that no fiber has now. Why kept: most of a stack is never touched, and asking the system
/// for one takes longer than many a run.
inline std::vector<std::unique_ptr<char[]>> spare_stacks;
inline constexpr std::size_t kStackBytes = 128 * 1024;

class Fiber {
 public:
  Fiber() = default;
  Fiber(const Fiber&) = delete;
  Fiber& operator=(const Fiber&) = delete;
  ~Fiber() {
    if (stack_ != nullptr) spare_stacks.push_back(std::move(stack_));
#ifdef __SANITIZE_THREAD__
    __tsan_destroy_fiber(of_sanitizer_);
#endif
  }

  /// The first enter() calls `work`, which must never return.
  void begin(void (*work)()) {
    if (stack_ == nullptr) take_stack();
#ifdef ATTNBENCH_FIBERS_BY_UCONTEXT
    getcontext(&context_);
    context_.uc_stack.ss_sp = stack_.get();
    context_.uc_stack.ss_size = kStackBytes;
    makecontext(&context_, work, 0);
#else
    // As after a switch at the first instruction of `work`: six registers, where to go on, and in
    // the place of what it would return to nothing, 8 bytes off 16 as after any call.
    constexpr std::size_t kWords = 8;
    const auto end = reinterpret_cast<std::uintptr_t>(stack_.get()) + kStackBytes;
    void* words[kWords] = {};
    words[6] = reinterpret_cast<void*>(work);
    context_ = reinterpret_cast<void*>(end / 16 * 16 - sizeof words);
    std::memcpy(context_, words, sizeof words);
#endif
  }

  /// By whoever is none: until the fiber leaves.
  void enter() {
#ifdef __SANITIZE_THREAD__
    outside_of_sanitizer_ = __tsan_get_current_fiber();
    __tsan_switch_to_fiber(of_sanitizer_, kSwitch);
#endif
#ifdef ATTNBENCH_FIBERS_BY_UCONTEXT
    swapcontext(&outside_, &context_);
#else
    attnbench_switch_stacks(&outside_, context_);
#endif
  }

  /// By the fiber itself: back to who entered it, until that enters it again.
  void leave() {
#ifdef __SANITIZE_THREAD__
    __tsan_switch_to_fiber(outside_of_sanitizer_, kSwitch);
#endif
#ifdef ATTNBENCH_FIBERS_BY_UCONTEXT
    swapcontext(&context_, &outside_);
#else
    attnbench_switch_stacks(&context_, outside_);
#endif
  }

 private:
  void take_stack() {
    if (spare_stacks.empty()) {
      stack_.reset(new char[kStackBytes]);  // not make_unique, which clears
    } else {
      stack_ = std::move(spare_stacks.back());
      spare_stacks.pop_back();
    }
  }

#ifdef ATTNBENCH_FIBERS_BY_UCONTEXT
  ucontext_t context_{};
  ucontext_t outside_{};
#else
  void* context_ = nullptr;
  void* outside_ = nullptr;
#endif
  std::unique_ptr<char[]> stack_;
#ifdef __SANITIZE_THREAD__
  // By default a switch orders what comes before it and behind it (race_testing.h).
#ifdef ATTNBENCH_FIND_RACES
  static constexpr unsigned kSwitch = __tsan_switch_to_fiber_no_sync;
#else
  static constexpr unsigned kSwitch = 0;
#endif
  void* of_sanitizer_ = __tsan_create_fiber(0);
  void* outside_of_sanitizer_ = nullptr;
#endif
};

}  // namespace attnbench::cuda
