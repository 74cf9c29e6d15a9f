#include "plugin/child_run.h"

#include <doctest/doctest.h>
#include <unistd.h>

#include <chrono>
#include <csignal>
#include <stdexcept>
#include <string>
#include <thread>

#include "plugin/python_environment.h"

namespace attnbench {

TEST_CASE("what a program prints is read to its end, and how it ended is told") {
  const auto shell = [](const std::string& script, double limit_s = 60) {
    return run_program({"sh", "-c", script}, limit_s);
  };
  CHECK(shell("printf 'a\\nb'").out == "a\nb");
  CHECK(shell("printf a").trouble == "");
  CHECK(shell("seq 100000 | tail -n 1; seq 100000").out.substr(0, 9) == "100000\n1\n");
  CHECK(shell("cat").out == "");  // its stdin is empty
  CHECK(shell("printf a; exit 3").out == "a");
  CHECK(shell("exit 3").trouble == "exit status 3");
  CHECK(shell("kill -9 $$").trouble == "signal 9 (Killed)");
  CHECK(run_program({"/nowhere/python3"}, 60).trouble == "No such file or directory");
}

TEST_CASE("a program that does not end is ended") {
  const ProgramOutput output = run_program({"sh", "-c", "printf a; exec sleep 3600"}, 1);
  CHECK(output.out == "a");
  CHECK(output.trouble == "no end after 1 s");
}

TEST_CASE("an adapter is named by its module and its class") {
  CHECK(is_adapter_name("mine:Mine"));
  CHECK(is_adapter_name("attnbench.adapters.torch_sdpa:Flash"));
  CHECK(is_adapter_name("mine:Outer.Inner"));
  for (const char* other : {"mine", "mine:", ":Mine", "mine:Mine:Mine", "mi ne:Mine", "mine.:Mine",
                            "../mine:Mine", "1mine:Mine", "mine:Mine\n"}) {
    CHECK_FALSE(is_adapter_name(other));
  }
}

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
