#include "core/result/metric_table.h"
#include "core/error.h"
#include "core/result/read_json.h"
#include "core/result/write_json.h"

#include <doctest/doctest.h>

#include <algorithm>
#include <limits>
#include <set>

namespace attnbench {
namespace {

constexpr double kNaN = std::numeric_limits<double>::quiet_NaN();

/// The table with a row more in each part.
MetricTable table_with_new_rows() {
  MetricTable table = metric_table();
  table.error.push_back({.name = "worst_ulps", .unit = "ulp", .text = "largest error in ulps"});
  table.timing.push_back({.name = "energy_mj",
                          .unit = "mJ",
                          .better = Better::kLess,
                          .text = "energy of a launch",
                          .plot = Plot{"energy", "energy", "number"}});
  table.throughput.push_back(
      {.name = "l2_hit_pct", .unit = "%", .better = Better::kMore, .text = "hits in L2"});
  return table;
}

Result measured_result() {
  Result result;
  result.status = Status::kPassed;
  result.error = result.lse_error = ErrorStats{};
  result.timing = Timing{};
  result.throughput = Throughput{};
  result.error->by_name["worst_ulps"] = 3;
  result.lse_error->by_name["worst_ulps"] = 5;
  result.timing->by_name["energy_mj"] = 2.5;
  result.throughput->by_name["l2_hit_pct"] = 80;
  return result;
}

std::vector<std::string> names_of(const std::vector<ListedMetric>& listed) {
  std::vector<std::string> names;
  for (const ListedMetric& metric : listed) names.push_back(metric.name);
  return names;
}

bool contains(const std::vector<std::string>& names, const std::string& name) {
  return std::find(names.begin(), names.end(), name) != names.end();
}

}  // namespace

TEST_CASE("a metric that is one row more is written to the result file and read from it") {
  const MetricTable table = table_with_new_rows();
  const std::string text = result_to_json(measured_result(), -1, table);
  CHECK(text.find("\"worst_ulps\":3.0}") != std::string::npos);
  CHECK(text.find("\"worst_ulps\":5.0}") != std::string::npos);
  CHECK(text.find("\"energy_mj\":2.5}") != std::string::npos);
  const Result read = result_from_json(text, table);
  CHECK(read.error->by_name.at("worst_ulps") == 3);
  CHECK(read.lse_error->by_name.at("worst_ulps") == 5);
  CHECK(read.timing->by_name.at("energy_mj") == 2.5);
  CHECK(read.throughput->by_name.at("l2_hit_pct") == 80);
  CHECK(result_to_json(read, -1, table) == text);
}

TEST_CASE("a metric by name is left out where it was not measured or is no number") {
  const MetricTable table = table_with_new_rows();
  Result result = measured_result();
  result.error->by_name.clear();
  result.timing->by_name["energy_mj"] = kNaN;
  const std::string text = result_to_json(result, -1, table);
  CHECK(text.find("energy_mj") == std::string::npos);
  const Result read = result_from_json(text, table);
  CHECK(read.error->by_name.empty());
  CHECK(read.timing->by_name.empty());
}

TEST_CASE("a metric by name that no row knows is an error of the program and not lost") {
  try {
    result_to_json(measured_result());
    FAIL("written");
  } catch (const Error& error) {
    CHECK(error.kind() == ErrorKind::kInternal);
    CHECK(std::string(error.what()).find("worst_ulps") != std::string::npos);
  }
}

TEST_CASE("a metric that is one row more is listed and plotted after the others") {
  const MetricTable table = table_with_new_rows();
  const std::vector<std::string> names = names_of(listed_metrics(table));
  for (const char* name : {"worst_ulps", "energy_mj", "l2_hit_pct"}) CHECK(contains(names, name));
  const std::vector<PlottedMetric> plotted = plotted_metrics(table);
  CHECK(plotted.front().name == "median_us");
  CHECK(plotted.back().name == "energy_mj");
  CHECK(plotted.back().part == "timing");
  CHECK(plotted.back().better == Better::kLess);
}

TEST_CASE("every number that the CSV has is listed, by name") {
  const std::vector<std::string> names = names_of(listed_metrics(metric_table()));
  CHECK(std::is_sorted(names.begin(), names.end()));
  CHECK(std::set<std::string>(names.begin(), names.end()).size() == names.size());
  for (const char* name : {"max_abs", "total_rows", "lse_max_abs", "quantization_max_abs",
                           "quantization_rms_rel", "median_us", "cpu_wait", "roofline_pct"}) {
    CAPTURE(name);
    CHECK(contains(names, name));
  }
  CHECK_FALSE(contains(names, "rule"));
}

TEST_CASE("the gate judges err_ratio before NMSE, and both are better when less") {
  const auto gated = gated_rows(metric_table().error);
  REQUIRE(gated.size() == 2);
  CHECK(std::string(gated[0]->gate->label) == "err_ratio");
  CHECK(std::string(gated[1]->gate->label) == "NMSE");
  for (const auto* row : gated) CHECK(row->better == Better::kLess);
}

}  // namespace attnbench
