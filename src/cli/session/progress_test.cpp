#include "cli/session/progress.h"

#include <doctest/doctest.h>

#include <sstream>

namespace attnbench {
namespace {

class FixedClock final : public Clock {
 public:
  double now_s() const override { return 0; }
};

void run_one_job(std::ostream& out, const ProgressOptions& options) {
  const FixedClock clock;
  Progress progress(out, clock, options);
  Job job;
  job.id = "s/q8/FLASH_ATTN";
  progress.job_started(0, 2, job);
  progress.phase(Phase::kReference);
  Result result;
  result.id = job.id;
  result.status = Status::kPassed;
  progress.job_finished(result);
}

TEST_CASE("a pipe gets no progress") {
  std::ostringstream out;
  run_one_job(out, {});
  CHECK(out.str().empty());
}

TEST_CASE("a terminal gets a line with what runs and what remains, erased at the end") {
  std::ostringstream out;
  run_one_job(out, {.live = true, .width = 80});
  CHECK(out.str().find("[1/2] 0s  s/q8/FLASH_ATTN: reference") != std::string::npos);
  const std::string erase = "\r\x1b[2K";
  REQUIRE(out.str().size() > erase.size());
  CHECK(out.str().substr(out.str().size() - erase.size()) == erase);
  CHECK(out.str().find('\n') == std::string::npos);
}

TEST_CASE("verbose runs print a line per result") {
  std::ostringstream out;
  run_one_job(out, {.line_per_result = true});
  CHECK(out.str() == "passed      s/q8/FLASH_ATTN\n");
}

TEST_CASE("the live line never exceeds the terminal's width") {
  const std::string id(200, 'x');
  for (const int width : {1, 10, 40, 80}) {
    CHECK(progress_line({99, 1000, 99, 4000, id, Phase::kTiming}, width).size() <=
          static_cast<std::size_t>(width));
  }
}

TEST_CASE("the live line guesses what is left from the jobs that finished, once there are some") {
  CHECK(progress_line({4, 10, 4, 60, "s/q8/B", Phase::kRun}, 80) ==
        "[5/10] 1m00s, about 1m30s left  s/q8/B: run");
  CHECK(progress_line({1, 10, 1, 60, "s/q8/B", Phase::kRun}, 80) == "[2/10] 1m00s  s/q8/B: run");
  CHECK(progress_line({4, 10, 4, 1, "s/q8/B", Phase::kRun}, 80) == "[5/10] 1s  s/q8/B: run");
}

}  // namespace
}  // namespace attnbench
