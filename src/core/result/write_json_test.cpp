#include "core/result/write_json.h"
#include "core/error.h"
#include "core/result/read_json.h"

#include <doctest/doctest.h>

#include <cmath>
#include <cstdint>
#include <limits>
#include <string>
#include <vector>

namespace attnbench {
namespace {

ErrorStats example_error(double max_abs) {
  ErrorStats stats;
  stats.max_abs = max_abs;
  stats.err_ratio = std::numeric_limits<double>::quiet_NaN();
  stats.worst_index = {3, 0, 7};
  stats.worst_actual = -1.5;
  stats.worst_expected = 0.1;
  stats.nan_count = 2;
  stats.checked_rows = 5;
  stats.total_rows = 9;
  stats.limit = "|a-r| <= 0.01";
  stats.rule = "semantics 14.2";
  return stats;
}

Timing summary_of(std::vector<double> samples_us) {
  Timing timing;
  timing.median_us = 1.15;
  timing.q1_us = 1.125;
  timing.noise = 0.01;
  timing.samples_us = std::move(samples_us);
  timing.l2 = "cold";
  timing.mode = "graph";
  timing.flushed_bytes = std::uint64_t{5} << 30;
  timing.launch_overhead_us = 2.5;
  timing.steps = {{"attend", 1.1, 64, 128}};
  timing.total_us = 7;
  return timing;
}

/// Something in every part.
Result full_result() {
  Result result;
  result.id = "s/c/B";
  result.scenario = "s";
  result.case_name = "c";
  result.backend = "B";
  result.device = "cuda:1";
  result.status = Status::kIncorrect;
  result.reasons = {"one \"quoted\"", "two\nlines"};
  result.problem_json = R"({"b":1,"a":[1,2]})";
  result.error = example_error(0.1);
  result.lse_error = example_error(1e-300);
  result.quantization_error = example_error(0.3);
  result.rank_errors = {{0, example_error(1), example_error(2)},
                        {1, example_error(3), example_error(4)}};
  result.timing = summary_of({1.1, 1.2});
  result.timing->clocks = DeviceClocks{1200, 1755, 1980, {"sw_power_cap"}};
  result.throughput =
      Throughput{1, 2, 3, 4, 5, 6, std::numeric_limits<double>::quiet_NaN(), "memory", 9, 7, 8};
  result.timing->waits_us = {0, 0.5};
  result.timing->rounds = {1, 1};
  result.timing->peers = {"B", "C"};
  result.timing->cpu_wait = 0.25;
  result.file_hashes = {{"kv_cache.scale_file", "0123"}};
  result.kernels = {{"attend d128", 255, 0, 49152, "abc"}};
  result.cascade_heuristic = false;
  result.forced_kernel = "general";
  result.plugin = PluginInfo{"./libmine.so", "1.2", "0123abcd"};
  result.batch_invariance = BatchInvariance{3, false, 0.25};
  result.repro = "attnbench run x";
  return result;
}

}  // namespace

TEST_CASE("a result that is written and read is the same to the last bit") {
  const Result original = full_result();
  const std::string text = result_to_json(original);
  CHECK(text.find('\n') == std::string::npos);
  const Result read = result_from_json(text);
  CHECK(result_to_json(read) == text);
  CHECK(read.timing->samples_us == original.timing->samples_us);
  REQUIRE(read.batch_invariance);
  CHECK(read.batch_invariance->request == 3);
  CHECK(read.batch_invariance->max_abs == 0.25);
  CHECK(read.rank_errors.size() == 2);
  CHECK(read.rank_errors[1].lse_error.max_abs == 4);
  CHECK(read.lse_error->max_abs == 1e-300);
  CHECK(std::isnan(read.error->err_ratio));
  CHECK(std::isnan(read.throughput->roofline_pct));
  CHECK(read.throughput->peak_pct == 9);
  CHECK(read.throughput->ceiling_tflops == 7);
  CHECK(read.throughput->ceiling_gbps == 8);
  CHECK(read.timing->waits_us == std::vector<double>{0, 0.5});
  CHECK(read.timing->rounds == std::vector<std::int64_t>{1, 1});
  CHECK(read.timing->peers == std::vector<std::string>{"B", "C"});
  CHECK(read.timing->cpu_wait == 0.25);
  CHECK(read.file_hashes.at("kv_cache.scale_file") == "0123");
  CHECK(read.kernels[0].registers == 255);
  CHECK(read.cascade_heuristic == false);
  CHECK(read.forced_kernel == "general");
  REQUIRE(read.plugin);
  CHECK(read.plugin->library == "./libmine.so");
  CHECK(read.plugin->version == "1.2");
  CHECK(read.plugin->sha256 == "0123abcd");
  CHECK(read.timing->flushed_bytes == std::uint64_t{5} << 30);
  REQUIRE(read.timing->clocks);
  CHECK(read.timing->clocks->sm_mhz_median == 1755);
  CHECK(read.timing->clocks->throttling == std::vector<std::string>{"sw_power_cap"});
}

TEST_CASE("rounds have medians of their own, and a spread in parts of the whole median") {
  Timing timing;
  timing.samples_us = {10, 30, 20, 12, 14, 11, 11};
  timing.median_us = 12;
  CHECK(round_medians_us(timing).empty());
  CHECK(std::isnan(round_spread(timing)));
  timing.rounds = {3, 2, 2};
  CHECK(round_medians_us(timing) == std::vector<double>{20, 13, 11});
  CHECK(round_spread(timing) == 0.75);
  Result result = full_result();
  result.timing->rounds = {2};
  const std::string text = result_to_json(result);
  CHECK(text.find("\"rounds\":[2],\"round_medians_us\":[1.15],\"round_spread\":null") !=
        std::string::npos);
}

TEST_CASE("samples that were judged say how many rows were screened, where any were") {
  Result result = full_result();
  result.timing->checked_samples = {{0, 1e-3, 4e-3, 0}, {1, 2e-3, 4e-3, 300}};
  const std::string text = result_to_json(result);
  CHECK(text.find("{\"sample\":0,\"row_error\":0.001,\"row_limit\":0.004}") != std::string::npos);
  CHECK(text.find("\"screened_rows\":300") != std::string::npos);
  const Result read = result_from_json(text);
  REQUIRE(read.timing->checked_samples.size() == 2);
  CHECK(read.timing->checked_samples[0].screened_rows == 0);
  CHECK(read.timing->checked_samples[1].screened_rows == 300);
  CHECK(read.timing->checked_samples[1].row_error == 2e-3);
}

TEST_CASE("rounds that are not those of the samples are refused") {
  for (const std::vector<std::int64_t>& rounds :
       std::vector<std::vector<std::int64_t>>{{1}, {1, 2}, {0, 2}, {3, -1}}) {
    Result result = full_result();
    std::string text = result_to_json(result);
    std::string wrong = "\"rounds\":[";
    for (const std::int64_t round : rounds) wrong += std::to_string(round) + ",";
    wrong.back() = ']';
    const std::string right = "\"rounds\":[1,1]";
    text.replace(text.find(right), right.size(), wrong);
    CHECK_THROWS_WITH_AS(result_from_json(text),
                         "result.timing.rounds: the rounds are not those of samples_us", Error);
  }
}

TEST_CASE("what a result lacks is lacking after reading") {
  Result original;
  original.status = Status::kUnsupported;
  const Result read = result_from_json(result_to_json(original));
  CHECK(read.status == Status::kUnsupported);
  CHECK_FALSE(read.error);
  CHECK_FALSE(read.timing);
  CHECK_FALSE(read.throughput);
  CHECK(read.rank_errors.empty());
}

TEST_CASE("a broken result names the key") {
  CHECK_THROWS_WITH_AS(result_from_json("{"), "result: not JSON", Error);
  // Brackets in texts are none.
  CHECK_FALSE(nests_too_deep("{\"a\":\"\\\"" + std::string(100, '[') + "\"}"));
  CHECK_FALSE(nests_too_deep("[" + std::string(100, ' ') + "]"));
  CHECK(nests_too_deep(std::string(100, '[') + std::string(100, ']')));
  CHECK_THROWS_WITH_AS(result_from_json("{}"), "result.id is missing", Error);
  std::string text = result_to_json(full_result());
  text.replace(text.find("\"incorrect\""), 11, "\"wonderful\"");
  CHECK_THROWS_WITH_AS(result_from_json(text), "result.status: unknown status 'wonderful'", Error);
  text = result_to_json(full_result());
  text.replace(text.find("\"median_us\":1.1"), 15, "\"median_us\":[]");
  CHECK_THROWS_AS(result_from_json(text), Error);
}

}  // namespace attnbench
