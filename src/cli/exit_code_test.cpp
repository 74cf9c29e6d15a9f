#include "cli/exit_code.h"

#include <doctest/doctest.h>

namespace attnbench {
namespace {

Outcome outcome_of(const StatusCounts& counts) {
  Outcome outcome;
  outcome.counts = counts;
  return outcome;
}

TEST_CASE("everything that ran passed, whatever was unsupported beside it") {
  CHECK(exit_code(outcome_of({.passed = 3})) == 0);
  CHECK(exit_code(outcome_of({.passed = 1, .unsupported = 5})) == 0);
  CHECK(exit_code(outcome_of({.unverified = 2})) == 0);
}

TEST_CASE("a time that beats the device fails like a wrong result") {
  CHECK(exit_code(outcome_of({.passed = 3, .implausible = 1})) == 1);
  CHECK(exit_code(outcome_of({.implausible = 1, .error = 1})) == 1);
}

TEST_CASE("nothing ran") {
  CHECK(exit_code(outcome_of({})) == 3);
  CHECK(exit_code(outcome_of({.unsupported = 4})) == 3);
}

TEST_CASE("a named backend that is unsupported everywhere is told even when others passed") {
  Outcome outcome = outcome_of({.passed = 2, .unsupported = 2});
  outcome.named_backend_unsupported = true;
  CHECK(exit_code(outcome) == 3);
}

TEST_CASE("when several codes apply the order is 2, 1, 4, 3") {
  Outcome outcome = outcome_of({.unsupported = 1});
  outcome.named_backend_unsupported = true;
  CHECK(exit_code(outcome) == 3);
  outcome.counts.error = 1;
  CHECK(exit_code(outcome) == 4);
  outcome.counts.incorrect = 1;
  CHECK(exit_code(outcome) == 1);
  outcome.usage_error = true;
  CHECK(exit_code(outcome) == 2);
}

TEST_CASE("an interruption is 4, also when all that ran passed or nothing ran yet") {
  Outcome outcome = outcome_of({.passed = 3});
  outcome.interrupted = true;
  CHECK(exit_code(outcome) == 4);
  CHECK(exit_code(outcome_of({.skipped = 3})) == 4);
}

TEST_CASE("a regression is 1, beside errors too") {
  Outcome outcome = outcome_of({.passed = 3});
  outcome.regression = true;
  CHECK(exit_code(outcome) == 1);
  outcome.counts.error = 1;
  CHECK(exit_code(outcome) == 1);
}

TEST_CASE("a gate that compared nothing is 3, unless something worse happened") {
  Outcome outcome = outcome_of({.passed = 3});
  outcome.nothing_compared = true;
  CHECK(exit_code(outcome) == 3);
  outcome.regression = true;
  CHECK(exit_code(outcome) == 1);
}

TEST_CASE("the code is never a count") {
  CHECK(exit_code(outcome_of({.incorrect = 7})) == 1);
  CHECK(exit_code(outcome_of({.error = 9})) == 4);
}

TEST_CASE("errors that end the program are bad input, but for memory and defects") {
  for (const ErrorKind kind :
       {ErrorKind::kUsage, ErrorKind::kConfig, ErrorKind::kShape, ErrorKind::kDtype,
        ErrorKind::kValue, ErrorKind::kFormat, ErrorKind::kIo}) {
    CHECK(exit_code(kind) == 2);
  }
  CHECK(exit_code(ErrorKind::kCapacity) == 4);
  CHECK(exit_code(ErrorKind::kUnsupported) == 3);
  CHECK(exit_code(ErrorKind::kCuda) == 4);
  CHECK(exit_code(ErrorKind::kInternal) == 4);
}

}  // namespace
}  // namespace attnbench
