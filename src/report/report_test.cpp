#include <doctest/doctest.h>

#include <cmath>
#include <limits>
#include <nlohmann/json.hpp>
#include <sstream>

#include "report/format.h"
#include "report/formats/csv.h"
#include "report/formats/json.h"
#include "report/formats/junit.h"
#include "report/formats/markdown.h"
#include "report/tables/results.h"

namespace attnbench {
namespace {

using Json = nlohmann::ordered_json;

constexpr double kNaN = std::numeric_limits<double>::quiet_NaN();

RunInfo example_run() {
  RunInfo run;
  run.tool_version = "1.2.3";
  run.git = "abc123";
  run.created = "2026-01-02T03:04:05Z";
  run.command = {"attnbench", "run", "a b.yaml"};
  run.environment.hostname = "host";
  run.environment.cpu.model = "Example CPU";
  run.environment.cpu.cores = 2;
  run.environment.compiler = "GCC 13.2.0";
  run.environment.fingerprint = "00ff";
  return run;
}

Result example_result(const std::string& backend, Status status) {
  Result result;
  result.scenario = "suite";
  result.case_name = "4q1s1k";
  result.backend = backend;
  result.id = "suite/4q1s1k/" + backend;
  result.device = "cpu";
  result.status = status;
  result.problem_json = R"({"attention":{"num_heads":8},"batch":[]})";
  result.repro = "attnbench run suite.yaml --filter '^suite/4q1s1k/" + backend + "$'";
  return result;
}

Result passed_result() {
  Result result = example_result("FLASH_ATTN", Status::kPassed);
  ErrorStats stats;
  stats.max_abs = 0.00123;
  stats.mean_abs = 0.0001;
  stats.rms_rel = 0.002;
  stats.err_ratio = 0.98;
  stats.matched_pct = 100;
  stats.worst_index = {3, 1, 7};
  stats.checked_rows = stats.total_rows = 4;
  stats.limit = "limit";
  stats.rule = "rule";
  result.error = stats;
  result.timing = Timing{};
  result.timing->median_us = 1234.5;
  result.timing->total_us = 2000;
  result.timing->noise = 0.008;
  result.timing->samples_us = {1234.5, 1234.25};
  result.timing->l2 = "warm";
  result.timing->mode = "stream";
  result.timing->steps = {{"write_cache", 10, 20, 0}, {"attend", 1234.5, 30, 40}};
  result.throughput = Throughput{};
  result.throughput->gbps = 45.06;
  result.throughput->roofline_pct = kNaN;
  result.throughput->bound = "memory";
  return result;
}

Result with_reasons(Result result, std::vector<std::string> reasons) {
  result.reasons = std::move(reasons);
  return result;
}

std::vector<Result> one_of_each() {
  return {passed_result(),
          with_reasons(example_result("TRITON_ATTN", Status::kIncorrect), {"output is off"}),
          with_reasons(example_result("FLASH_ATTN_IX", Status::kUnsupported),
                       {"head_size not supported", "dtype not supported"}),
          with_reasons(example_result("REFERENCE", Status::kError), {"E-CAPACITY: too large"}),
          with_reasons(example_result("CUDNN", Status::kSkipped), {"interrupted"})};
}

template <typename... Options>
std::string text_of(void (*write)(std::ostream&, const RunInfo&, const std::vector<Result>&,
                                  Options...),
                    const std::vector<Result>& results, Options... options) {
  std::ostringstream out;
  write(out, example_run(), results, options...);
  return out.str();
}

std::string table_of(const std::vector<Result>& results, TableOptions options) {
  std::ostringstream out;
  write_table(out, example_run(), results, options);
  return out.str();
}

std::vector<std::string> lines_of(const std::string& text) {
  std::istringstream in(text);
  std::vector<std::string> lines;
  for (std::string line; std::getline(in, line);) lines.push_back(line);
  return lines;
}

std::vector<std::string> keys_of(const Json& json) {
  std::vector<std::string> keys;
  for (const auto& [key, value] : json.items()) keys.push_back(key);
  return keys;
}

bool contains(const std::string& text, const std::string& part) {
  return text.find(part) != std::string::npos;
}

/// Fails unless every tag of `xml` is closed in order and every character is allowed in XML 1.0.
void check_well_formed(const std::string& xml) {
  std::vector<std::string> open;
  for (std::size_t i = xml.find("?>") + 2; i < xml.size(); ++i) {
    REQUIRE((static_cast<unsigned char>(xml[i]) >= 0x20 || xml[i] == '\n'));
    if (xml[i] != '<') continue;
    const std::size_t end = xml.find('>', i);
    const std::string tag = xml.substr(i + 1, end - i - 1);
    REQUIRE(tag.find('<') == std::string::npos);
    const std::string name = tag.substr(0, tag.find_first_of(" /", 1));
    if (tag.front() == '/') {
      REQUIRE(open.back() == tag.substr(1));
      open.pop_back();
    } else if (tag.back() != '/') {
      open.push_back(name);
    }
    i = end;
  }
  CHECK(open.empty());
}

}  // namespace

TEST_CASE("the result file has the fields of the contract in its order") {
  const Json json = Json::parse(text_of(write_json, one_of_each()));
  CHECK(keys_of(json) == std::vector<std::string>{"schema_version", "tool", "created", "command",
                                                  "environment", "results"});
  CHECK(json["schema_version"] == 1);
  CHECK(json["tool"] == Json{{"name", "attnbench"}, {"version", "1.2.3"}, {"git", "abc123"}});
  CHECK(json["command"] == Json{"attnbench", "run", "a b.yaml"});
  CHECK(keys_of(json["environment"]) ==
        std::vector<std::string>{"hostname", "cpu", "device", "compiler", "fingerprint"});
  CHECK(json["environment"]["device"].is_null());
  CHECK(json["environment"]["compiler"] == Json{{"name", "GCC"}, {"version", "13.2.0"}});
  REQUIRE(json["results"].size() == 5);
  const Json& result = json["results"][0];
  CHECK(keys_of(result) == std::vector<std::string>{"id", "scenario", "case", "backend", "device",
                                                    "status", "reasons", "problem", "error",
                                                    "lse_error", "quantization_error", "timing",
                                                    "throughput", "kernels", "repro"});
  CHECK(result["id"] == "suite/4q1s1k/FLASH_ATTN");
  CHECK(result["status"] == "passed");
  CHECK(result["problem"]["attention"]["num_heads"] == 8);
  CHECK(result["lse_error"].is_null());
  CHECK(json["results"][2]["timing"].is_null());
  CHECK(json["results"][2]["reasons"][1] == "dtype not supported");
}

TEST_CASE("errors, times and rates have the names of the contract") {
  const Json result = Json::parse(text_of(write_json, {passed_result()}))["results"][0];
  const auto starts_with = [](const Json& json, const std::vector<std::string>& expected) {
    std::vector<std::string> keys = keys_of(json);
    REQUIRE(keys.size() >= expected.size());
    keys.resize(expected.size());
    CHECK(keys == expected);
  };
  starts_with(result["error"], {"max_abs", "mean_abs", "rms_rel", "nmse", "cosine", "err_ratio",
                                "matched_pct", "worst_index", "nan_count", "inf_count",
                                "checked_rows", "total_rows", "limit", "rule"});
  starts_with(result["timing"],
              {"median_us", "min_us", "q1_us", "q3_us", "mean_us", "stdev_us", "noise",
               "samples_us", "l2", "mode", "launch_overhead_us", "steps", "total_us"});
  starts_with(result["throughput"], {"tflops", "gbps", "kv_gbps", "tokens_per_s", "flops", "bytes",
                                     "roofline_pct", "bound"});
  CHECK(keys_of(result["timing"]["steps"][1]) ==
        std::vector<std::string>{"name", "median_us", "bytes", "flops"});
  CHECK(result["error"]["worst_index"] == Json{3, 1, 7});
  CHECK(result["error"]["max_abs"].get<double>() == 0.00123);
}

TEST_CASE("a number that does not exist is null with a note and never NaN or Infinity") {
  Result result = passed_result();
  result.error->err_ratio = kNaN;
  result.error->worst_actual = std::numeric_limits<double>::infinity();
  result.timing->stdev_us = kNaN;
  result.timing->samples_us = {1};
  const std::string text = text_of(write_json, {result});
  CHECK_FALSE(contains(text, ": nan"));
  CHECK_FALSE(contains(text, "NaN,"));
  CHECK_FALSE(contains(text, "Infinity"));
  const Json json = Json::parse(text)["results"][0];
  CHECK(json["error"]["err_ratio"].is_null());
  CHECK(json["error"]["notes"].size() == 2);
  CHECK(contains(json["error"]["notes"][0], "err_ratio: "));
  CHECK(contains(json["error"]["notes"][1], "worst_actual: infinite"));
  CHECK(contains(json["timing"]["notes"][0], "stdev_us: "));
  CHECK(contains(json["throughput"]["notes"][0], "roofline_pct: "));
}

TEST_CASE("no results and text that is not UTF-8 still give strict JSON") {
  CHECK(Json::parse(text_of(write_json, {}))["results"].empty());
  const auto bad = with_reasons(passed_result(), {"\xff\xfe \x01 \"quoted\"\n"});
  CHECK(Json::accept(text_of(write_json, {bad})));
}

TEST_CASE("CSV has one line a result and quotes what holds separators") {
  auto results = one_of_each();
  results[1].reasons = {"a, \"b\"", "c"};
  const std::string text = text_of(write_csv, results);
  CHECK(contains(text, "id,scenario,case,backend,device,status,reasons,max_abs,"));
  CHECK(contains(text, ",incorrect,\"a, \"\"b\"\"; c\","));
  CHECK(contains(text, ",0.00123,0.0001,"));
  const auto lines = lines_of(text);
  REQUIRE(lines.size() == 6);
  const auto commas = [](const std::string& line) {
    return std::count(line.begin(), line.end(), ',');
  };
  CHECK(commas(lines[1]) == commas(lines[0]));
  for (const std::string& line : lines) CHECK(line.back() == '\r');
  CHECK_FALSE(contains(text, ",nan,"));
}

TEST_CASE("CSV and Markdown have a column for every swept key, and what quantising costs") {
  auto results = std::vector<Result>{passed_result(), passed_result()};
  results[0].case_name = "4q1s1k,kv_cache.dtype=auto";
  results[0].problem_json = R"({"kv_cache":{"dtype":"auto"}})";
  results[1].case_name = "4q1s1k,kv_cache.dtype=fp8";
  results[1].problem_json = R"({"kv_cache":{"dtype":"fp8_e4m3"}})";
  results[1].quantization_error = results[1].error;
  results[1].quantization_error->rms_rel = 0.046;
  results[1].quantization_error->by_name["saturated_key"] = 0.25;
  const auto csv = lines_of(text_of(write_csv, results));
  CHECK(csv[0].ends_with(",repro,batch,kv_cache.dtype\r"));
  CHECK(contains(csv[0], ",quantization_rms_rel,"));
  CHECK(contains(csv[0], ",quantization_saturated_key,"));
  CHECK(csv[1].ends_with(",4q1s1k,auto\r"));
  CHECK(csv[2].ends_with(",4q1s1k,fp8_e4m3\r"));
  const auto markdown = lines_of(text_of(write_markdown, results));
  CHECK(markdown[0].starts_with("| case | batch | kv_cache.dtype | backend | status |"));
  CHECK(contains(markdown[2], "| 4q1s1k | auto | FLASH_ATTN |"));
  CHECK(contains(markdown[2], "| 0.98 | - | 1.234 ms |"));
  CHECK(contains(markdown[3], "| 0.98 | 4.6%! | 1.234 ms |"));
  const auto bars = [](const std::string& line) {
    return std::count(line.begin(), line.end(), '|');
  };
  CHECK(bars(markdown[0]) == bars(markdown[1]));
  CHECK(bars(markdown[0]) == bars(markdown[3]));
  CHECK(
      contains(markdown[5], "quant! warning: the scales are too small and clip 25.0% of the keys"));
}

TEST_CASE("Markdown cells cannot break the table") {
  const auto bad = with_reasons(passed_result(), {"a|b\nc <script>"});
  const auto lines = lines_of(text_of(write_markdown, {bad}));
  CHECK(contains(lines[2], "a\\|b c &lt;script>"));
  CHECK(contains(lines[2], "1.234 ms"));
  CHECK(lines[4] == "1 passed");
}

TEST_CASE("what is predicted of simulated ranks stands under a line with -v, and says so") {
  Result result = passed_result();
  result.timing->by_name["predicted_us"] = 1234;
  TableOptions options;
  options.width = 120;
  const std::string words =
      "ranks are simulated, one after another; 1.234 ms predicted for real ones over NVLink";
  CHECK(contains(table_of({result}, options), words));
  options.show_reasons = false;
  CHECK_FALSE(contains(table_of({result}, options), "predicted"));
}

TEST_CASE("messages between real ranks stand under a line with -v, with their bus bandwidth") {
  Result result = passed_result();
  TableOptions options;
  options.width = 200;
  result.timing->steps = {
      {"all_gather_query", 10, 20480, 0}, {"correct", 5, 0, 0}, {"reduce_scatter", 20, 1e6, 0}};
  CHECK(contains(table_of({result}, options),
                 "messages between ranks: all_gather_query 20.0 KiB in 10.00 us (2.0 GB/s); "
                 "reduce_scatter 976.6 KiB in 20.00 us (50.0 GB/s)"));
  // Simulated ranks send nothing.
  for (StepTiming& step : result.timing->steps) step.bytes = 0;
  CHECK_FALSE(contains(table_of({result}, options), "messages"));
}

TEST_CASE("cycles, clocks and the share of the peak stand under a line with -v, and in Markdown") {
  Result result = passed_result();
  CHECK(format_clock(result) == "");
  result.timing->samples_sm_mhz = {1755, 1980, 1740};
  result.timing->cycles = 2.41e6;
  result.timing->pace = "cool";
  result.throughput->peak_pct = 68.2;
  const std::string words =
      "2.41M cycles at 1755 MHz (1740 to 1980), 68% of the peak at that clock, pace cool";
  CHECK(format_clock(result) == words);
  TableOptions options;
  options.width = 120;
  CHECK(contains(table_of({result}, options), words));
  options.show_reasons = false;
  CHECK_FALSE(contains(table_of({result}, options), "cycles"));
  const auto lines = lines_of(text_of(write_markdown, {result}));
  CHECK(contains(lines[0], "| roof | peak | noise |"));
  CHECK(contains(lines[2], "| 68% | 0.8% |"));
  CHECK(contains(lines[0], "| err_ratio | quant | time |"));
  CHECK(std::count(lines[0].begin(), lines[0].end(), '|') ==
        std::count(lines[1].begin(), lines[1].end(), '|'));
  CHECK(std::count(lines[0].begin(), lines[0].end(), '|') ==
        std::count(lines[2].begin(), lines[2].end(), '|'));
}

TEST_CASE("names and reasons cannot write to the terminal") {
  Result evil = with_reasons(passed_result(), {"layer '\x1b[31ma\x07' is missing"});
  evil.case_name = "q8,mm_encoder.layer_names=\x1b]0;x\xC2\x9B";
  evil.status = Status::kError;
  for (const std::string& text : {text_of(write_markdown, {evil}), table_of({evil}, {})}) {
    CHECK_FALSE(contains(text, "\x1b"));
    CHECK_FALSE(contains(text, "\x07"));
    CHECK_FALSE(contains(text, "\xC2\x9B"));
    CHECK(contains(text, "x1b[31ma"));
  }
}

TEST_CASE("JUnit has a suite a scenario with real skipped, failure and error elements") {
  auto results = one_of_each();
  results.push_back(passed_result());
  results.back().scenario = "other";
  const std::string xml = text_of(write_junit, results);
  check_well_formed(xml);
  CHECK(contains(
      xml, "<testsuite name=\"suite\" tests=\"5\" failures=\"1\" errors=\"1\" skipped=\"2\""));
  CHECK(contains(
      xml, "<testsuite name=\"other\" tests=\"1\" failures=\"0\" errors=\"0\" skipped=\"0\""));
  CHECK(contains(xml,
                 "<testsuites name=\"attnbench\" tests=\"6\" failures=\"1\" errors=\"1\" time="));
  CHECK(contains(xml, "<failure message=\"output is off\""));
  CHECK(contains(xml, "<error message=\"E-CAPACITY: too large\""));
  CHECK(contains(
      xml, "<skipped message=\"unsupported: head_size not supported; dtype not supported\"/>"));
  CHECK(contains(xml, "<skipped message=\"skipped: interrupted\"/>"));
  CHECK(contains(xml, "name=\"4q1s1k/FLASH_ATTN\" time=\"0.002000000\""));
}

TEST_CASE("JUnit is valid XML for any name") {
  Result result =
      with_reasons(example_result("A<B>&\"'\x01\x7f\xff", Status::kIncorrect), {"]]> \x02 <\n&"});
  result.scenario = "s<&";
  const std::string xml = text_of(write_junit, {result});
  check_well_formed(xml);
  CHECK(contains(xml, "A&lt;B&gt;&amp;&quot;&apos;\xEF\xBF\xBD"));
}

TEST_CASE("the table fits its width, with every case whole") {
  auto results = one_of_each();
  for (Result& result : results) result.case_name = "60q1s4k_4q1ks3k,of_a_key_that_is_not=128";
  for (const int width : {60, 80, 100, 200}) {
    CAPTURE(width);
    const std::string table = table_of(results, {false, width, true});
    for (const std::string& line : lines_of(table)) {
      if (line.starts_with("reproduce: ")) continue;  // to be copied
      CHECK(display_width(line) <= static_cast<std::size_t>(width));
    }
    CHECK(contains(table, "60q1s4k_4q1ks3k,of_a_key_that_is_not=128"));
  }
}

TEST_CASE("the table shows numbers with units") {
  const std::string table = table_of({passed_result()}, {});
  CHECK(contains(table, "1.2e-03"));
  CHECK(contains(table, "0.98"));
  CHECK(contains(table, "1.234 ms"));
  CHECK(contains(table, "GB/s"));
  CHECK(contains(table, "45.1"));
}

TEST_CASE("unsupported shows its first reason, or all when asked for") {
  const auto results = one_of_each();
  const std::string brief = table_of(results, {false, 80, false});
  CHECK(contains(brief, "unsupported: head_size not supported"));
  CHECK_FALSE(contains(brief, "dtype not supported"));
  CHECK(contains(table_of({results[0], results[2]}, {false, 80, false}), "all reasons: add -v\n"));
  CHECK(contains(brief, "output is off"));
  CHECK(contains(table_of(results, {false, 80, true}), "unsupported: dtype not supported"));
}

TEST_CASE("the closing lines count the worst first and name the command to reproduce it") {
  const std::string table = table_of(one_of_each(), {});
  CHECK(contains(table, "\n1 incorrect, 1 error, 1 skipped, 1 unsupported, 1 passed\n"));
  CHECK(
      contains(table, "reproduce: attnbench run suite.yaml --filter '^suite/4q1s1k/TRITON_ATTN$'"));
}

TEST_CASE("colours appear only when asked for") {
  CHECK_FALSE(contains(table_of(one_of_each(), {false, 80, true}), "\x1b["));
  CHECK(contains(table_of(one_of_each(), {true, 80, true}), "\x1b[31mincorrect\x1b[0m"));
}

TEST_CASE("an empty table says so") { CHECK(table_of({}, {}) == "no results\n"); }

TEST_CASE("times, rates and shares have suiting units") {
  CHECK(format_time(0.5) == "0.500 us");
  CHECK(format_time(12.344) == "12.34 us");
  CHECK(format_time(1234.5) == "1.234 ms");
  CHECK(format_time(2.5e6) == "2.500 s");
  CHECK(format_time(kNaN) == "-");
  Result on_cpu;
  on_cpu.device = "cpu";
  Result on_gpu;
  on_gpu.device = "cuda:0";
  const std::vector<Result> both{on_cpu, on_gpu};
  Throughput rate;
  rate.flops = rate.bytes = 1e9;
  rate.tflops = 0.312;
  rate.gbps = 45.1;
  // Neither the number nor the ceiling that is met decides which rates there are and their units.
  for (const char* bound : {"compute", "memory", ""}) {
    rate.bound = bound;
    CHECK(format_rates(rate, flop_unit(std::vector<Result>{on_cpu})) == "45.1 GB/s, 312 GFLOP/s");
    CHECK(format_rates(rate, flop_unit(std::vector<Result>{on_gpu})) == "45.1 GB/s, 0.31 TFLOP/s");
  }
  CHECK(std::string(flop_unit(both)) == "TFLOP/s");
  rate.tflops = 1.2;
  CHECK(format_flops(rate, "GFLOP/s") == "1200");
  rate.tflops = 0.0004;
  CHECK(format_flops(rate, "TFLOP/s") == "0.0004");
  rate.flops = rate.tflops = 0;
  CHECK(format_rates(rate, "GFLOP/s") == "45.1 GB/s");
  rate.gbps = kNaN;
  CHECK(format_gbps(rate) == "-");
  rate.bytes = 0;
  CHECK(format_gbps(rate) == "");
  CHECK(format_noise(0.0081) == "0.8%");
  CHECK(format_share(0.0456) == "4.6%");
  CHECK(format_share(0.986) == "98.6%");
  CHECK(format_share(0.0046) == "0.46%");
  CHECK(format_share(0.00046) == "0.046%");
  CHECK(format_share(1e-9) == "<0.001%");
  CHECK(format_share(0) == "0.0%");
  CHECK(format_share(kNaN) == "-");
  Throughput throughput;
  throughput.roofline_pct = 92.4;
  CHECK(format_roofline(throughput) == "92%");
  throughput.roofline_pct = 3.14;
  CHECK(format_roofline(throughput) == "3.1%");
  throughput.roofline_pct = 104;
  CHECK(format_roofline(throughput) == "104%");
  throughput.roofline_pct = kNaN;
  CHECK(format_roofline(throughput) == "");
}

TEST_CASE("shortening and wrapping count columns, not bytes") {
  CHECK(shorten_middle("abcdefghij", 5) == "ab\xE2\x80\xA6ij");
  CHECK(shorten_middle("abc", 3) == "abc");
  CHECK(display_width(shorten_middle("\xC3\xA4\xC3\xA4\xC3\xA4\xC3\xA4", 3)) == 3);
  CHECK(wrap_text("aaaa bbbb cccc dddd eeee ffff", 24, "  ") ==
        "  aaaa bbbb cccc dddd\n  eeee ffff\n");
  CHECK(sanitize_utf8("a\xC3(\xED\xA0\x80") ==
        "a\xEF\xBF\xBD(\xEF\xBF\xBD\xEF\xBF\xBD\xEF\xBF\xBD");
}

}  // namespace attnbench
