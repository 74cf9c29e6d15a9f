// What the gate makes of a metric table with a row more.
#include <doctest/doctest.h>

#include "gate/gate.h"
#include "gate/gate_cases.h"

namespace attnbench {
namespace {

using gate_testing::result_of;
using gate_testing::verdict_of;

constexpr double kThreshold = 0.03;

MetricTable table_with(const MetricRow<Throughput>& row) {
  MetricTable table = metric_table();
  table.throughput.push_back(row);
  return table;
}

Result with_rate(const char* name, double value) {
  Result result = result_of("a");
  result.throughput = Throughput{};
  result.throughput->by_name[name] = value;
  return result;
}

Verdict judge(const MetricTable& table, const char* name, double before, double after) {
  GateOptions options;
  options.threshold = kThreshold;
  options.metrics = &table;
  return verdict_of(with_rate(name, before), with_rate(name, after), options);
}

}  // namespace

TEST_CASE("a metric of which less is better fails the gate when it grows, by one row") {
  const MetricTable table = table_with(
      {.name = "energy_mj", .better = Better::kLess, .gate = GateRule{"energy", /*floor=*/1}});
  const Verdict grown = judge(table, "energy_mj", 10, 11);
  CHECK(grown.kind == VerdictKind::kSlower);
  CHECK(grown.fails);
  CHECK(grown.rule == "energy 10 -> 11 grew past the threshold 3%");
  CHECK(judge(table, "energy_mj", 11, 10).kind == VerdictKind::kSame);
  CHECK(judge(table, "energy_mj", 10, 10.2).kind == VerdictKind::kSame);
  CHECK(judge(table, "energy_mj", 0.1, 0.9).kind == VerdictKind::kSame);
}

TEST_CASE("a metric of which more is better fails the gate when it falls") {
  const MetricTable table =
      table_with({.name = "l2_hit_pct", .better = Better::kMore, .gate = GateRule{"L2 hits"}});
  const Verdict fallen = judge(table, "l2_hit_pct", 80, 40);
  CHECK(fallen.kind == VerdictKind::kSlower);
  CHECK(fallen.rule == "L2 hits 80 -> 40 fell past the threshold 3%");
  CHECK(judge(table, "l2_hit_pct", 40, 80).kind == VerdictKind::kSame);
}

TEST_CASE("a metric without a gate rule fails nothing") {
  const MetricTable table = table_with({.name = "energy_mj", .better = Better::kLess});
  CHECK(judge(table, "energy_mj", 10, 1000).kind == VerdictKind::kSame);
}

TEST_CASE("an error that is one row more makes a case less accurate") {
  MetricTable table = metric_table();
  table.error.push_back({.name = "worst_ulps", .better = Better::kLess, .gate = GateRule{"ulps"}});
  GateOptions options;
  options.metrics = &table;
  Result before = result_of("a");
  before.error = ErrorStats{};
  before.error->checked_rows = before.error->total_rows = 1;
  before.error->by_name["worst_ulps"] = 2;
  Result after = before;
  after.error->by_name["worst_ulps"] = 9;
  const Verdict verdict = verdict_of(before, after, options);
  CHECK(verdict.kind == VerdictKind::kLessAccurate);
  CHECK(verdict.rule == "ulps 2 -> 9 grew past the threshold 25%");
}

}  // namespace attnbench
