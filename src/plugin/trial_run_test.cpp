#include "plugin/trial_run.h"

#include <doctest/doctest.h>
#include <unistd.h>

#include <chrono>
#include <csignal>
#include <stdexcept>
#include <thread>

namespace attnbench {

TEST_CASE("what ends a child process is told, and what it throws is left to the caller") {
  constexpr double kLongS = 60;
  CHECK(trial_run([] {}, kLongS) == "");
  CHECK(trial_run([] { throw std::runtime_error("again, please"); }, kLongS) == "");
  CHECK(trial_run([] { std::raise(SIGKILL); }, kLongS) == "signal 9 (Killed)");
  CHECK(trial_run([] { _exit(3); }, kLongS) == "exit status 3");
  CHECK(trial_run([] { _exit(0); }, kLongS) == "exit status 0");
}

TEST_CASE("a child that does not end is ended") {
  const auto sleep = [] { std::this_thread::sleep_for(std::chrono::hours(1)); };
  CHECK(trial_run(sleep, 1) == "no end after 1 s");
}

TEST_CASE("what a child does stays in the child") {
  int value = 1;
  CHECK(trial_run([&] { value = 2; }, 60) == "");
  CHECK(value == 1);
}

}  // namespace attnbench
