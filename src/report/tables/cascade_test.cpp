#include "report/tables/cascade.h"

#include <doctest/doctest.h>
#include <fmt/format.h>

#include <sstream>

#include "report/formats/markdown.h"
#include "report/tables/results.h"

namespace attnbench {
namespace {

Result timed(const std::string& batch, int prefix, const std::string& mode, double median_us) {
  Result result;
  result.scenario = "suite";
  result.backend = "FLASH_ATTN";
  result.case_name =
      fmt::format("{},cascade.common_prefix_len={},cascade.mode={}", batch, prefix, mode);
  result.status = Status::kPassed;
  result.problem_json = fmt::format(R"({{"batch":"{0}","kv_cache":{{"num_blocks":{1}}},)"
                                    R"("cascade":{{"common_prefix_len":{1},"mode":"{2}"}}}})",
                                    batch, prefix, mode);
  result.timing = Timing{};
  result.timing->median_us = median_us;
  return result;
}

/// Speedups of one batch over prefixes 128, 512, 2048.
std::vector<Result> batch_of(const std::string& batch, double a, double b, double c) {
  std::vector<Result> results;
  for (const auto& [prefix, speedup] : {std::pair{128, a}, {512, b}, {2048, c}}) {
    results.push_back(timed(batch, prefix, "never", 10 * speedup));
    results.push_back(timed(batch, prefix, "always", 10));
  }
  return results;
}

}  // namespace

TEST_CASE("the crossover is the least prefix from which on the pass of its own is faster") {
  const auto pays_from = [](double a, double b, double c) {
    return cascade_rows(batch_of("8q1s4k", a, b, c)).at(0).pays_from;
  };
  CHECK(pays_from(0.5, 1.5, 2.0) == 512);
  CHECK(pays_from(1.5, 1.6, 2.0) == 128);
  CHECK(pays_from(1.5, 0.9, 2.0) == 2048);
  CHECK(pays_from(1.5, 1.5, 1.0) == std::nullopt);
}

TEST_CASE("batches and backends are rows of their own, in the order of the results") {
  std::vector<Result> results = batch_of("64q1s4k", 0.5, 1.5, 2.0);
  for (Result& result : batch_of("8q1s4k", 0.5, 0.6, 1.25)) results.push_back(result);
  const std::vector<CascadeRow> rows = cascade_rows(results);
  REQUIRE(rows.size() == 2);
  CHECK(rows[0].case_name == "64q1s4k");
  CHECK(rows[0].backend == "FLASH_ATTN");
  CHECK(rows[0].speedup == std::map<std::int64_t, double>{{128, 0.5}, {512, 1.5}, {2048, 2.0}});
  CHECK(rows[1].case_name == "8q1s4k");
  CHECK(rows[1].pays_from == 2048);
}

TEST_CASE("cases without a time or a partner make no row and no table") {
  std::vector<Result> results = batch_of("8q1s4k", 2, 2, 2);
  for (Result& result : results) {
    if (result.case_name.ends_with("always")) result.timing.reset();
  }
  results.push_back(timed("9q1", 128, "auto", 3));
  results.push_back(timed("9q1", 0, "never", 3));
  results.push_back(timed("9q1", 0, "always", 3));
  CHECK(cascade_rows(results).empty());
  std::ostringstream out;
  write_cascade_table(out, results, false);
  CHECK(out.str().empty());
}

TEST_CASE("the table and Markdown show speedups by prefix and the crossover") {
  std::vector<Result> results = batch_of("8q1s4k", 0.5, 1.5, 2.0);
  results.pop_back();  // 2048 has no partner any more
  std::ostringstream table;
  write_table(table, {}, results, {});
  CHECK(table.str().find("prefix  backend      128   512  pays from\n"
                         "8q1s4k  FLASH_ATTN  0.50  1.50        512\n") != std::string::npos);
  std::ostringstream markdown;
  write_markdown(markdown, {}, results);
  CHECK(markdown.str().find("| prefix | backend | 128 | 512 | pays from |\n"
                            "|---|---|---:|---:|---:|\n"
                            "| 8q1s4k | FLASH_ATTN | 0.50 | 1.50 | 512 |\n") != std::string::npos);
}

TEST_CASE("the heuristic is wrong where the other way is faster by more than 5 %") {
  const auto wrong = [](double plain, double cascade, std::optional<bool> heuristic) {
    return CascadePair{plain, cascade, heuristic}.is_heuristic_wrong();
  };
  CHECK(wrong(10, 20, true));
  CHECK(wrong(20, 10, false));
  CHECK_FALSE(wrong(10, 20, false));
  CHECK_FALSE(wrong(20, 10, true));
  CHECK_FALSE(wrong(10, 10.4, true));
  CHECK_FALSE(wrong(10, 20, std::nullopt));
}

TEST_CASE(
    "where results say what auto would choose, both times and the choice are a second table") {
  std::vector<Result> results = batch_of("8q1s4k", 0.5, 1.0, 2.0);
  std::ostringstream without_choice;
  write_cascade_table(without_choice, results, false);
  CHECK(without_choice.str().find("heuristic") == std::string::npos);
  for (Result& result : results) result.cascade_heuristic = false;
  std::ostringstream out;
  write_cascade_table(out, results, false);
  CHECK(out.str().find("wrong, by more than 5 %, in 1 of 3 pairs") != std::string::npos);
  CHECK(out.str().find(
            "8q1s4k  FLASH_ATTN  2048      20.0        10.0  plain: heuristic wrong here") !=
        std::string::npos);
  std::ostringstream markdown;
  write_cascade_table(markdown, results, true);
  CHECK(markdown.str().find("| 8q1s4k | FLASH_ATTN | 128 | 5.0 | 10.0 | plain |") !=
        std::string::npos);
}

}  // namespace attnbench
