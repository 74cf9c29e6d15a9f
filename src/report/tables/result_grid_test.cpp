#include "report/tables/result_grid.h"

#include <doctest/doctest.h>
#include <fmt/format.h>

#include <limits>
#include <set>
#include <sstream>

#include "report/format.h"
#include "report/tables/results.h"

namespace attnbench {
namespace {

Result timed_case(const std::string& batch, const std::string& dtype, int block_size,
                  const std::string& backend) {
  Result result;
  result.scenario = "suite";
  result.case_name =
      fmt::format("{},kv_cache.dtype={},kv_cache.block_size={}", batch, dtype, block_size);
  result.backend = backend;
  result.id = "suite/" + result.case_name + "/" + backend;
  result.status = Status::kPassed;
  result.problem_json =
      fmt::format(R"({{"kv_cache":{{"dtype":"{}","block_size":{}}}}})", dtype, block_size);
  result.error = ErrorStats{};
  result.error->max_abs = 7.9e-4;
  result.error->err_ratio = 0.68;
  result.timing = Timing{};
  result.timing->median_us = 4898;
  result.timing->noise = 0.031;
  result.throughput = Throughput{};
  result.throughput->bound = "memory";
  result.throughput->gbps = 6.88;
  result.throughput->bytes = 1e7;
  result.throughput->roofline_pct = 62;
  return result;
}

std::vector<Result> sweep(const std::vector<std::string>& backends = {"FLASH_ATTN"}) {
  std::vector<Result> results;
  for (const char* dtype : {"auto", "fp8_e4m3"}) {
    for (const int block_size : {16, 32}) {
      for (const std::string& backend : backends) {
        results.push_back(timed_case("60q1s4k_4q1ks3k_2q17s300", dtype, block_size, backend));
      }
    }
  }
  for (Result& result : results) {
    if (result.problem_json.find("fp8") == std::string::npos) continue;
    result.quantization_error = result.error;
    result.quantization_error->rms_rel = 0.046;
  }
  return results;
}

std::vector<std::string> table_lines(const std::vector<Result>& results, int width) {
  std::ostringstream out;
  write_table(out, {}, results, {false, width, false});
  std::istringstream in(out.str());
  std::vector<std::string> lines;
  for (std::string line; std::getline(in, line);) lines.push_back(line);
  return lines;
}

std::string text_of(const std::vector<std::string>& lines) {
  std::string text;
  for (const std::string& line : lines) text += line + "\n";
  return text;
}

bool holds(const std::string& text, const std::string& part) {
  return text.find(part) != std::string::npos;
}

}  // namespace

TEST_CASE("what varies are columns, and what is shared stands once above") {
  const auto lines = table_lines(sweep(), 160);
  CHECK(lines[0] == "every row: batch 60q1s4k_4q1ks3k_2q17s300");
  CHECK(lines[1].starts_with(
      "kv.dtype  kv.block_size  backend     status  max_abs  err_ratio  quant"));
  CHECK(lines[2].starts_with("auto      16             FLASH_ATTN  passed"));
  CHECK(lines[5].starts_with("fp8_e4m3  32             FLASH_ATTN  passed"));
  CHECK(holds(lines[2], "     -  "));
  CHECK(holds(lines[5], "  4.6%  "));
}

TEST_CASE("at every width rows tell their cases apart, and no number is lost without a word") {
  for (const auto& backends :
       {std::vector<std::string>{"FLASH_ATTN"}, {"FLASH_ATTN", "FLASH_ATTN_IX", "TRITON_ATTN"}}) {
    for (const int width : {60, 70, 80, 100, 120, 160}) {
      CAPTURE(width);
      CAPTURE(backends.size());
      const auto lines = table_lines(sweep(backends), width);
      for (const std::string& line : lines) {
        CHECK(display_width(line) <= static_cast<std::size_t>(width));
      }
      const std::string text = text_of(lines);
      for (const char* title : {"roof", "noise", "quant", "time", "GB/s", "max_abs"}) {
        CHECK(holds(text, title));
      }
      CHECK((holds(text, "err_ratio") || holds(text, "err_")));
      // All of a case that stands in or above its row.
      std::set<std::string> cases;
      std::string label;
      for (const std::string& line : lines) {
        if (line.starts_with("kv.dtype=")) label = line;
        if (holds(line, "4.898 ms")) cases.insert(label + line);
      }
      CHECK(cases.size() == 4 * backends.size());
    }
  }
}

TEST_CASE("at 80 columns a sweep keeps every number") {
  for (const auto& backends :
       {std::vector<std::string>{"FLASH_ATTN"}, {"FLASH_ATTN", "FLASH_ATTN_IX", "TRITON_ATTN"}}) {
    const std::string text = text_of(table_lines(sweep(backends), 80));
    CHECK_FALSE(holds(text, "no room"));
    CHECK(holds(text, "62%"));
    CHECK(holds(text, "3.1%"));
  }
}

TEST_CASE("what has no room is named with the way to see it") {
  const std::string text = text_of(table_lines(sweep({"FLASH_ATTN", "TRITON_ATTN"}), 50));
  CHECK(holds(text, "no room for"));
  CHECK(holds(text, "--csv"));
}

TEST_CASE("cases of several scenarios have theirs in front, with short keys") {
  auto results = sweep();
  results[3].scenario = "other";
  const std::string text = text_of(table_lines(results, 160));
  CHECK(holds(text, "suite/60q1s4k_4q1ks3k_2q17s300, kv.dtype=auto, kv.block_size=16"));
  CHECK(holds(text, "other/60q1s4k_4q1ks3k_2q17s300, kv.dtype=fp8_e4m3, kv.block_size=32"));
}

TEST_CASE("doubtful numbers have a sign, and a sentence says what it means") {
  auto results = sweep();
  results[0].timing->cpu_wait = 0.62;
  results[1].timing->noise = 1.07;
  results[2].timing->clocks = DeviceClocks{};
  results[2].timing->clocks->throttling = {"sw_power_cap"};
  results[3].status = Status::kImplausible;
  results[3].quantization_error->by_name = {{"saturated_key", 0.986}, {"saturated_value", 0.97}};
  const auto lines = table_lines(results, 160);
  CHECK(holds(lines[2], "4.898 ms*"));
  CHECK(holds(lines[3], "107.0%!"));
  CHECK(holds(lines[4], "4.898 ms^"));
  CHECK(holds(lines[5], "4.898 ms?"));
  CHECK(holds(lines[5], "4.6%!"));
  const std::string text = text_of(lines);
  CHECK(holds(text, "\ntime*  busy machine: threads waited up to 62% of the time"));
  CHECK(holds(text, "\ntime^  the device throttled its clocks: sw_power_cap (1 of 4 results)"));
  CHECK(holds(text, "\ntime?  implausible"));
  CHECK(holds(text, "\nnoise! above 5%, up to 107.0% (1 of 4 results)"));
  CHECK(holds(text, "clip 98.6% of the keys, 97.0% of the values (1 of 4 results)"));
}

TEST_CASE("both rates stand in every row, whatever bounds it and however fast it is") {
  auto results = sweep();
  for (Result& result : results) {
    result.device = "cpu";
    result.throughput->flops = result.throughput->bytes = 1e9;
    result.throughput->gbps = 45.1;
    result.throughput->tflops = 0.312;
  }
  for (const std::size_t i : {0u, 1u}) results[i].throughput->bound = "compute";
  results[1].throughput->tflops = 1.5;
  const auto lines = table_lines(results, 160);
  CHECK(holds(lines[1], "GB/s  GFLOP/s"));
  CHECK(holds(lines[2], "  45.1      312  "));
  CHECK(holds(lines[3], "  45.1     1500  "));
  CHECK(holds(lines[4], "  45.1      312  "));
  CHECK_FALSE(holds(text_of({lines.begin() + 2, lines.begin() + 6}), "/s"));
  results[0].device = "cuda:0";
  CHECK(holds(table_lines(results, 160)[1], "GB/s  TFLOP/s"));
  CHECK(holds(table_lines(results, 160)[2], "  0.31  "));
}

TEST_CASE("a reason that several results have is said once, with how many have it") {
  auto results = sweep({"FLASH_ATTN", "FLASHMLA", "MLA"});
  int others = 0;
  for (Result& result : results) {
    if (result.backend == "FLASH_ATTN") continue;
    result.status = Status::kUnsupported;
    result.reasons = {"type decoder not supported"};
    if (others++ == 0) result.reasons = {"no luck"};
  }
  const std::string text = text_of(table_lines(results, 100));
  CHECK(holds(text, "    unsupported: no luck\n"));
  CHECK(holds(text, "\n    7 results of MLA, FLASHMLA: unsupported: type decoder not supported\n"));
  CHECK(text.find("not supported") == text.rfind("not supported"));
}

TEST_CASE("quiet results have no signs and no sentences") {
  const std::string text = text_of(table_lines(sweep(), 160));
  for (const char* sign : {"ms*", "ms^", "%!", "time*", "noise!", "quant!"}) {
    CHECK_FALSE(holds(text, sign));
  }
}

TEST_CASE("one line says what to do next, the worst first") {
  auto results = sweep();
  TableOptions options{false, 160, false};
  options.elapsed = "12s";
  options.next = "plots: here";
  const auto last_lines = [&] {
    std::ostringstream out;
    write_table(out, {}, results, options);
    const std::string text = out.str();
    return text.substr(text.find(" passed in ") + 1);
  };
  CHECK(last_lines() == "passed in 12s\nplots: here\n");
  results[3].quantization_error->by_name = {{"saturated_key", 0.986}};
  CHECK(last_lines() == "passed in 12s\nnext: scales that fit: attnbench calibrate --help\n");
  results[0].status = Status::kIncorrect;
  results[0].repro = "attnbench run suite";
  CHECK(last_lines() == "passed in 12s\nreproduce: attnbench run suite\n");
}

}  // namespace attnbench
