#include "scenario/batch/trace.h"

#include <doctest/doctest.h>

#include <cstdlib>

#include "core/error.h"

namespace attnbench {
namespace {

std::string error_of(const std::string& text, TraceFormat format) {
  try {
    parse_trace(text, "t", format);
  } catch (const Error& error) {
    return error.full_message();
  }
  return "accepted";
}

const char* trace_folder() { return std::getenv("ATTNBENCH_TRACE_DIR"); }

TEST_CASE("azure_llm traces are CSV with a header; line ends and blank lines do not matter") {
  const auto trace = parse_trace(
      "TIMESTAMP,ContextTokens,GeneratedTokens\r\n2023-11-16 18:17:03.97,4808,10\r\n\r\n"
      "2023-11-16 18:17:04.03,3180,8",
      "t", TraceFormat::kAzureLlm);
  REQUIRE(trace.size() == 2);
  CHECK(trace[0].prompt_tokens == 4808);
  CHECK(trace[1].generated_tokens == 8);
}

TEST_CASE("mooncake traces are JSON lines with block ids") {
  const auto trace =
      parse_trace(R"({"timestamp": 0, "input_length": 700, "output_length": 5, "hash_ids": [0, 9]})"
                  "\n",
                  "t", TraceFormat::kMooncake);
  REQUIRE(trace.size() == 1);
  CHECK(trace[0].prompt_tokens == 700);
  CHECK(trace[0].prefix_blocks == std::vector<std::int64_t>{0, 9});
}

TEST_CASE("damaged traces name the line") {
  const std::string header = "TIMESTAMP,ContextTokens,GeneratedTokens\n";
  const auto azure = [&](const std::string& text) {
    return error_of(text, TraceFormat::kAzureLlm);
  };
  CHECK(
      azure("a,b,c\n1,2,3") ==
      "E-FORMAT: t:1: expected the header TIMESTAMP,ContextTokens,GeneratedTokens, found 'a,b,c'");
  for (const char* line : {"x,1", "x,1,2,3", "x,1,y", "x,1.5,2", "x,,2", "x,0,2", "x,-4,2",
                           "x,5,-1", "x,99999999999999999999,1", "x,100000001,1"}) {
    CAPTURE(line);
    CHECK(azure(header + "x,1,2\n" + line).starts_with("E-FORMAT: t:3: expected "));
  }
  CHECK(azure(header) == "E-FORMAT: t:1: expected a trace of requests, found none");
  CHECK(azure("") == "E-FORMAT: t:1: expected a trace of requests, found none");
  for (const char* line : {"[1]", "{", "{\"input_length\": 3}", "x",
                           "{\"input_length\": 3.5, \"output_length\": 1, \"hash_ids\": []}",
                           "{\"input_length\": 3, \"output_length\": 1, \"hash_ids\": [\"a\"]}",
                           "{\"input_length\": 3, \"output_length\": 1, \"hash_ids\": 4}"}) {
    CAPTURE(line);
    CHECK(error_of(line, TraceFormat::kMooncake).starts_with("E-FORMAT: t:1: expected "));
  }
}

TEST_CASE("the full Azure and Mooncake traces read and replay") {
  if (trace_folder() == nullptr) {
    MESSAGE("skipped: ATTNBENCH_TRACE_DIR is not set");
    return;
  }
  const std::filesystem::path folder = trace_folder();
  const auto azure = read_trace(folder / "AzureLLMInferenceTrace_conv.csv", TraceFormat::kAzureLlm);
  CHECK(azure.size() == 19366);
  const ReplayOptions options{64, 8192, 1000, 0};
  const ReplayedBatch batch = replay_trace(azure, options);
  CHECK(batch.batch.size() <= 64);
  CHECK(batch.batch == replay_trace(azure, options).batch);
  std::int64_t tokens = 0;
  for (const Request& request : batch.batch) {
    tokens += request.query_len;
    CHECK(request.seq_len >= request.query_len);
  }
  CHECK(tokens <= 8192);
  const auto mooncake =
      read_trace(folder / "mooncake_conversation_trace.jsonl", TraceFormat::kMooncake);
  CHECK(mooncake.size() == 12031);
  // Every request of this trace starts with block 0, and few share more.
  CHECK(replay_trace(mooncake, options).shared_prefix_tokens == 512);
}

}  // namespace
}  // namespace attnbench
