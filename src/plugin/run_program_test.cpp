#include "plugin/run_program.h"

#include <doctest/doctest.h>

#include <string>

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

}  // namespace attnbench
