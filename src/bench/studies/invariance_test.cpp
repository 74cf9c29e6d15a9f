#include "bench/studies/invariance.h"

#include <doctest/doctest.h>

#include <algorithm>

#include "backends/forwarding_backend.h"
#include "bench/loop/fake_backend.h"

namespace attnbench {
namespace {

InvarianceReport study(const Problem& problem, const FakeBackend& backend) {
  const auto ops = make_cpu_ops(1);
  return study_invariance(problem, backend, *ops, {}, {.num_threads = 1, .should_stop = {}});
}

const InvarianceRow& row_of(const InvarianceReport& report, const std::string& change) {
  const auto found = std::find_if(report.rows.begin(), report.rows.end(),
                                  [&](const InvarianceRow& row) { return row.change == change; });
  REQUIRE_MESSAGE(found != report.rows.end(), change);
  return *found;
}

TEST_CASE("a request keeps its bytes under every change that the backend does not look at") {
  const InvarianceReport report = study(small_problem(), FakeBackend{});
  CHECK(report.request == 0);
  for (const InvarianceRow& row : report.rows) {
    CAPTURE(row.change);
    CHECK(row.refusal.empty());
    CHECK(row.equal);
    CHECK(row.max_abs == 0);
  }
  CHECK(report.row_error < 1e-2);
  CHECK(row_of(report, "last token as a decode").row_error <= report.row_error);
}

TEST_CASE("what depends on the size of the batch differs there and nowhere else") {
  FakeBackend backend;
  backend.fault = [](PipelineOutput& output, int) {
    // Eight requests of four tokens.
    if (output.output.dim(0) != 32) return;
    for (std::int64_t i = 0; i < output.output.num_elements(); ++i) {
      output.output.set(i, output.output.at(i) + 0.5F);
    }
  };
  const InvarianceReport report = study(small_problem(), backend);
  for (const char* change : {"last of 8 alike", "first of 8 alike", "fourth of 8 alike"}) {
    CAPTURE(change);
    CHECK_FALSE(row_of(report, change).equal);
    CHECK(row_of(report, change).max_abs > 0.4);
    CHECK(row_of(report, change).row_error > report.row_error);
  }
  CHECK(row_of(report, "last of 2 alike").equal);
  CHECK(row_of(report, "run again").equal);
  CHECK(row_of(report, "in 2 chunks").equal);
}

TEST_CASE("the last request with new tokens is studied, with its own values") {
  Problem problem = small_problem();
  problem.batch = {{2, 5}, {3, 7}, {0, 4}};
  problem.kv_cache.num_blocks = 8;
  const InvarianceReport report = study(problem, FakeBackend{});
  CHECK(report.request == 1);
  CHECK(row_of(report, "last token as a decode").equal);
}

TEST_CASE("a decode is also run as the last token of a prompt") {
  Problem problem = small_problem();
  problem.batch = {{1, 20}};
  const InvarianceReport report = study(problem, FakeBackend{});
  CHECK(row_of(report, "as the last token of a prompt").equal);
}

TEST_CASE("a change that the backend refuses is not run, and says why") {
  class Picky final : public ForwardingBackend {
   public:
    explicit Picky(const Backend& inner) : ForwardingBackend(inner) {}
    std::vector<std::string> refusals(const Problem& problem, const DeviceFacts&) const override {
      if (problem.kv_cache.block_size == 64) return {"no pages of 64"};
      return {};
    }
  };
  const FakeBackend inner;
  const Picky backend(inner);
  const auto ops = make_cpu_ops(1);
  const InvarianceReport report =
      study_invariance(small_problem(), backend, *ops, {}, {.num_threads = 1, .should_stop = {}});
  CHECK(row_of(report, "pages of 64").refusal == "no pages of 64");
  CHECK(row_of(report, "pages of 32").refusal.empty());
}

TEST_CASE("what cannot be cut into requests is not studied") {
  Problem problem = small_problem();
  CHECK(why_no_invariance(problem).empty());
  problem.attention.type = AttentionType::kMla;
  CHECK(why_no_invariance(problem).find("mla") != std::string::npos);
  problem = small_problem();
  problem.dcp.world_size = 2;
  CHECK_FALSE(why_no_invariance(problem).empty());
  problem = small_problem();
  problem.batch = {{0, 4}};
  CHECK_FALSE(why_no_invariance(problem).empty());
}

}  // namespace
}  // namespace attnbench
