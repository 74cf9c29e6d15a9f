#include "cli/session/interrupt.h"

#include <unistd.h>

#include <atomic>
#include <csignal>

#include "cli/exit_code.h"

namespace attnbench {
namespace {

/// Why a global: a signal handler sees nothing else.
std::atomic<int> signal_count{0};
static_assert(std::atomic<int>::is_always_lock_free, "a handler may only touch lock-free atomics");

extern "C" void count_signal(int /*signal*/) {
  if (signal_count.fetch_add(1) > 0) _exit(kExitError);
}

constexpr int kSignals[] = {SIGINT, SIGTERM};

}  // namespace

InterruptGuard::InterruptGuard() {
  signal_count = 0;
  struct sigaction action = {};
  action.sa_handler = count_signal;
  sigemptyset(&action.sa_mask);
  action.sa_flags = SA_RESTART;  // reading and writing go on
  for (const int signal : kSignals) sigaction(signal, &action, nullptr);
}

InterruptGuard::~InterruptGuard() {
  for (const int signal : kSignals) std::signal(signal, SIG_DFL);
}

bool InterruptGuard::interrupted() { return signal_count > 0; }

}  // namespace attnbench
