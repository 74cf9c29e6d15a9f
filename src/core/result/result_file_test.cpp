#include "core/result/result_file.h"

#include <doctest/doctest.h>

#include "core/error.h"
#include "core/result/write_json.h"

namespace attnbench {
namespace {

std::string result_text(const std::string& id) {
  Result result;
  result.id = id;
  result.status = Status::kPassed;
  result.problem_json = "{}";
  return result_to_json(result);
}

const std::string kHead =
    R"("schema_version":1,"tool":{"name":"attnbench","version":"1.2","git":"abc"},)"
    R"("created":"2026-01-02T03:04:05Z","command":["attnbench"],"environment":{"hostname":"h",)"
    R"("cpu":{"model":"CPU","cores":4,"features":"avx2"},)"
    R"("device":{"name":"GPU","sm":90,"driver":"570.1"},)"
    R"("compiler":{"name":"g++","version":"13"},"fingerprint":"f"})";

std::string file_text(const std::string& results) {
  return "{" + kHead + ",\"results\":[" + results + "]}";
}

void check_refused(const std::string& text, const std::string& why) {
  CAPTURE(text);
  try {
    parse_result_file(text, "a.json");
    FAIL("accepted");
  } catch (const Error& error) {
    CHECK(error.kind() == ErrorKind::kFormat);
    CHECK(std::string(error.what()).find("a.json: ") == 0);
    CHECK(std::string(error.what()).find(why) != std::string::npos);
  }
}

TEST_CASE("a result file is read with its head, device and results") {
  const ResultFile file =
      parse_result_file(file_text(result_text("a") + "," + result_text("b")), "a.json");
  CHECK_FALSE(file.is_journal);
  CHECK(file.run.tool_version == "1.2");
  CHECK(file.run.created == "2026-01-02T03:04:05Z");
  CHECK(file.run.command == std::vector<std::string>{"attnbench"});
  CHECK(file.run.environment.cpu.model == "CPU");
  CHECK(file.run.environment.cpu.cores == 4);
  CHECK(file.run.environment.compiler == "g++ 13");
  CHECK(file.run.environment.fingerprint == "f");
  CHECK(file.device.at("name") == "GPU");
  CHECK(file.device.at("sm") == "90");
  CHECK_FALSE(file.run.noise_floor);
  REQUIRE(file.results.size() == 2);
  CHECK(file.results[1].id == "b");
}

TEST_CASE("a file without a device and unknown keys are fine") {
  std::string text = file_text(result_text("a"));
  const std::size_t begin = text.find("{\"name\":\"GPU\"");
  text.replace(begin, text.find('}', begin) + 1 - begin, "null");
  text.insert(1, "\"extra\":[1],");
  CHECK(parse_result_file(text, "a.json").device.empty());
}

TEST_CASE("the noise floor of a baseline is read") {
  std::string text = file_text("");
  text.insert(1, R"("noise_floor":{"runs":2,"all_cases":0.01,"cases":{"a":0.05}},)");
  const ResultFile file = parse_result_file(text, "a.json");
  REQUIRE(file.run.noise_floor);
  CHECK(file.run.noise_floor->runs == 2);
  CHECK(file.run.noise_floor->all_cases == 0.01);
  CHECK(file.run.noise_floor->cases.at("a") == 0.05);
}

TEST_CASE("clocks of all results make one range") {
  std::string text = result_text("a");
  const std::string timing =
      R"("timing":{"median_us":1,"min_us":1,"q1_us":1,"q3_us":1,"mean_us":1,"stdev_us":null,)"
      R"("noise":null,"samples_us":[1],"l2":"cold","mode":"stream","launch_overhead_us":0,)"
      R"("steps":[],"total_us":1,"clocks":{"sm_mhz_min":1200,"sm_mhz_median":1500,"sm_mhz_max":1900,)"
      R"("throttling":[]}})";
  text.replace(text.find("\"timing\":null"), 13, timing);
  std::string other = text;
  other.replace(other.find("\"id\":\"a\""), 8, "\"id\":\"b\"");
  other.replace(other.find("1200"), 4, "1100");
  const ResultFile file = parse_result_file(file_text(text + "," + other), "a.json");
  CHECK(file.sm_mhz_min == 1100);
  CHECK(file.sm_mhz_max == 1900);
}

TEST_CASE("a journal gives its complete lines") {
  const std::string head = "{" + kHead + ",\"journal\":1}\n";
  const std::string whole = head + result_text("a") + "\n" + result_text("b") + "\n";
  const ResultFile file = parse_result_file(whole, "a.json");
  CHECK(file.is_journal);
  CHECK(file.results.size() == 2);
  for (std::size_t cut = head.size(); cut < whole.size(); ++cut) {
    const std::size_t lines = cut > head.size() + result_text("a").size() ? 1 : 0;
    REQUIRE(parse_result_file(whole.substr(0, cut), "a.json").results.size() == lines);
  }
  check_refused(head + "{\"id\n" + result_text("b") + "\n", "line 2 of the journal is not JSON");
}

TEST_CASE("what is no result file is refused by name and reason") {
  check_refused("", "not JSON");
  const std::string nested(200'000, '[');
  check_refused("{\"schema_version\":1,\"results\":[{\"problem\":" + nested + "}]}",
                "nested too deep");
  check_refused("{\"schema_version\":", "not JSON");
  check_refused("[]", "expected an object");
  check_refused("{}", "schema_version is missing");
  check_refused("{\"schema_version\":2,\"results\":[]}", "schema_version: expected 1, found 2");
  check_refused("{\"schema_version\":1}", "results: expected a list");
  check_refused("{\"schema_version\":1,\"results\":[3]}", "results[0]: result: expected an object");
  check_refused(file_text(result_text("a") + "," + result_text("a")),
                "two results have the id 'a'");
  CHECK_THROWS_AS(read_result_file("/nowhere/a.json"), Error);
  CHECK_THROWS_AS(read_result_file("/tmp"), Error);
}

}  // namespace
}  // namespace attnbench
