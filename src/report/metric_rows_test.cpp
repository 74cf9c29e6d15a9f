// What the reports make of a metric table with a row more.
#include <doctest/doctest.h>

#include <nlohmann/json.hpp>
#include <sstream>

#include "report/formats/csv.h"
#include "report/page.h"

namespace attnbench {
namespace {

using Json = nlohmann::ordered_json;

MetricTable table_with_energy() {
  MetricTable table = metric_table();
  table.timing.push_back({.name = "energy_mj",
                          .unit = "mJ",
                          .better = Better::kLess,
                          .text = "energy of a launch",
                          .plot = Plot{"energy", "energy", "number", 0.001}});
  table.error.push_back({.name = "worst_ulps", .unit = "ulp", .csv = {.lse = true}});
  return table;
}

Result timed_result() {
  Result result;
  result.id = "s/c/B";
  result.scenario = "s";
  result.case_name = "c";
  result.backend = "B";
  result.status = Status::kPassed;
  result.problem_json = "{}";
  result.lse_error = ErrorStats{};
  result.lse_error->by_name["worst_ulps"] = 7;
  result.timing = Timing{};
  result.timing->by_name["energy_mj"] = 2.5;
  return result;
}

std::vector<std::string> fields_of(std::istream& csv) {
  std::string line;
  std::getline(csv, line);
  if (!line.empty() && line.back() == '\r') line.pop_back();
  std::vector<std::string> fields;
  std::istringstream in(line + ",");
  for (std::string field; std::getline(in, field, ',');) fields.push_back(field);
  return fields;
}

}  // namespace

TEST_CASE("a metric that is one row more is a column of the CSV, of the LSE too where it says so") {
  std::stringstream csv;
  write_csv_columns(csv, {timed_result()}, table_with_energy());
  const std::vector<std::string> titles = fields_of(csv);
  const std::vector<std::string> fields = fields_of(csv);
  REQUIRE(titles.size() == fields.size());
  const auto field = [&](const std::string& title) {
    const auto found = std::find(titles.begin(), titles.end(), title);
    REQUIRE(found != titles.end());
    return fields[static_cast<std::size_t>(found - titles.begin())];
  };
  CHECK(field("energy_mj") == "2.5");
  CHECK(field("lse_worst_ulps") == "7");
  CHECK(field("worst_ulps") == "");
}

TEST_CASE("a metric that is one row more reaches the page with its number and how to plot it") {
  ResultFile file;
  file.results = {timed_result()};
  const Json data = Json::parse(page_data({file}, {}, table_with_energy()));
  CHECK(data["results"][0]["timing"]["energy_mj"] == 2.5);
  const Json& metric = data["metrics"].back();
  CHECK(metric["key"] == "energy");
  CHECK(metric["at"] == Json{"timing", "energy_mj"});
  CHECK(metric["factor"] == 0.001);
  CHECK(metric["better"] == "less");
}

TEST_CASE("the page lists its metrics in the order in which they are offered") {
  const Json data = Json::parse(page_data({}, {}));
  std::vector<std::string> keys;
  for (const Json& metric : data["metrics"]) keys.push_back(metric["key"]);
  CHECK(keys == std::vector<std::string>{"time", "total", "flops", "bytes", "kv_bytes", "tokens",
                                         "roofline", "noise", "err_ratio", "max_abs", "rms_rel"});
}

}  // namespace attnbench
