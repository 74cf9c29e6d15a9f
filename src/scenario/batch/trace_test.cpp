#include "scenario/batch/trace.h"

#include <doctest/doctest.h>

#include <cstdlib>

#include "core/error.h"

namespace attnbench {
namespace {

std::string trace_error(const std::string& text, TraceFormat format) {
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
    return trace_error(text, TraceFormat::kAzureLlm);
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
    CHECK(trace_error(line, TraceFormat::kMooncake).starts_with("E-FORMAT: t:1: expected "));
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

namespace {

TEST_CASE("records of benchmarks with lengths or times that are none are refused or have none") {
  const auto bench = [](const std::string& lengths) {
    return trace_error("{\"input_lens\": " + lengths + ", \"output_lens\": [3, 3]}",
                       TraceFormat::kVllmBench);
  };
  CHECK(bench("[5, 7]") == "accepted");
  CHECK(bench("[-5, 7]") ==
        "E-FORMAT: t: expected 1 to 100000000 prompt tokens and 0 to 100000000 generated ones, "
        "found -5 and 3");
  CHECK(bench("[18446744073709551615, 7]").starts_with("E-FORMAT: t: expected 1 to "));
  CHECK(bench("[5, 7.5]") ==
        "E-FORMAT: t:1: expected whole numbers in input_lens and output_lens, found '7.5'");
  const auto csv = parse_trace("time,input_tokens,output_tokens\nnan,5,1\ninf,6,1\n2.5,7,1\n", "t",
                               TraceFormat::kCsv);
  REQUIRE(csv.size() == 3);
  CHECK(csv[0].arrival_s == kNoArrival);
  CHECK(csv[1].arrival_s == kNoArrival);
  CHECK(csv[2].arrival_s == 2.5);
  const std::string finished =
      R"({"event": "request.finished", "out": {"meta_info": {"prompt_tokens": 4, "completion_tokens": 2}}})";
  CHECK(
      parse_trace("{\"event\": 5}\n{\"x\": 1}\n" + finished, "t", TraceFormat::kSglangLog).size() ==
      1);
}

/// A seed whose replay starts at `line` of a trace of `n` lines.
std::uint64_t seed_for(std::uint64_t line, std::uint64_t n) {
  std::uint64_t seed = 0;
  while (splitmix64(seed) % n != line) ++seed;
  return seed;
}

std::vector<Request> batch_at(const std::vector<TraceRequest>& trace, std::int64_t step,
                              std::int64_t requests, std::int64_t max_tokens,
                              std::uint64_t line = 0) {
  return replay_trace(trace, {requests, max_tokens, step, seed_for(line, trace.size())}).batch;
}

TEST_CASE("splitmix64 is the published generator") {
  CHECK(splitmix64(0) == 0xE220A8397B1DCDAFu);
  CHECK(splitmix64(1234567) == 6457827717110365317u);
}

// Two run at a time, eight tokens a step; A: 10 tokens in, 3 out; B: 3 in, 1 out; C: 5 in, 2 out.
//   step 1  A prompt 0-7                        (budget spent)   -> A computed 8
//   step 2  A prompt 8-9, B prompt 0-2          A makes its 1st, B its only token; B leaves, C
//   joins step 3  A decodes, C prompt 0-4             A's 2nd, C's 1st step 4  A decodes, C decodes
//   A's 3rd and C's 2nd: both leave; A and B join step 5  A prompt 0-7
TEST_CASE("a trace replays as worked out by hand") {
  const std::vector<TraceRequest> trace = {{10, 3}, {3, 1}, {5, 2}};
  CHECK(batch_at(trace, 1, 2, 8) == std::vector<Request>{{8, 8}});
  CHECK(batch_at(trace, 2, 2, 8) == std::vector<Request>{{2, 10}, {3, 3}});
  CHECK(batch_at(trace, 3, 2, 8) == std::vector<Request>{{1, 11}, {5, 5}});
  CHECK(batch_at(trace, 4, 2, 8) == std::vector<Request>{{1, 12}, {1, 6}});
  CHECK(batch_at(trace, 5, 2, 8) == std::vector<Request>{{8, 8}});
}

TEST_CASE("one replay gives the batches of several steps") {
  const std::vector<TraceRequest> trace = {{10, 3}, {3, 1}, {5, 2}};
  const TraceReplay replay = start_replay(trace, {2, 8, 1, seed_for(0, trace.size())});
  for (const std::int64_t step : {1, 2, 2, 4, 5, 40}) {
    CAPTURE(step);
    CHECK(replay(step).batch == batch_at(trace, step, 2, 8));
  }
}

TEST_CASE("the seed picks the first line and the trace wraps around") {
  const std::vector<TraceRequest> trace = {{10, 3}, {3, 1}, {5, 2}};
  CHECK(batch_at(trace, 1, 2, 100, 1) == std::vector<Request>{{3, 3}, {5, 5}});
  CHECK(batch_at(trace, 1, 2, 100, 2) == std::vector<Request>{{5, 5}, {10, 10}});
  CHECK(batch_at(trace, 1, 4, 100, 2) == std::vector<Request>{{5, 5}, {10, 10}, {3, 3}, {5, 5}});
}

TEST_CASE("the batch is ordered decode, one-token chunk, longer chunk, fresh prompt") {
  // 7 tokens a step. Step 1: A 4 (done), B 3 of 4. Step 2: A decodes, B its last token (a chunk of
  // one), C 5 of 9. Step 3: A and B decode, C its last 4, D 1 of 6: a fresh prompt stays last.
  const std::vector<TraceRequest> trace = {{4, 9}, {4, 9}, {9, 9}, {6, 9}};
  CHECK(batch_at(trace, 2, 4, 7) == std::vector<Request>{{1, 5}, {1, 4, true}, {5, 5}});
  CHECK(batch_at(trace, 3, 4, 7) == std::vector<Request>{{1, 6}, {1, 5}, {4, 9}, {1, 1}});

  // B leaves after step 2; A, admitted later than C, overtakes it because it decodes by then.
  const std::vector<TraceRequest> late = {{1, 1}, {20, 2}, {2, 9}};
  // Step 1: A 1, B 9 of 20, budget 10. A leaves, C joins behind B. Step 2: B 10, C none.
  // Step 3: B its last token, C 2. Step 4: both decode.
  CHECK(batch_at(late, 2, 2, 10) == std::vector<Request>{{10, 19}});
  CHECK(batch_at(late, 3, 2, 10) == std::vector<Request>{{1, 20, true}, {2, 2}});
  CHECK(batch_at(late, 4, 2, 10) == std::vector<Request>{{1, 21}, {1, 3}});
}

TEST_CASE("decodes run even when they exceed the token budget, and starve prompts") {
  const std::vector<TraceRequest> trace = {{1, 9}, {1, 9}, {1, 9}, {5, 9}};
  // Step 1: A, B. Step 2: A, B decode, nothing left. It stays so until they finish.
  CHECK(batch_at(trace, 1, 4, 2) == std::vector<Request>{{1, 1}, {1, 1}});
  CHECK(batch_at(trace, 4, 4, 2) == std::vector<Request>{{1, 4}, {1, 4}});
}

TEST_CASE("a request that generates nothing or one token leaves after its prompt") {
  for (std::int64_t generated : {0, 1}) {
    const std::vector<TraceRequest> trace = {{4, generated}, {6, 2}};
    CHECK(batch_at(trace, 2, 1, 100) == std::vector<Request>{{6, 6}});
    CHECK(batch_at(trace, 3, 1, 100) == std::vector<Request>{{1, 7}});
    CHECK(batch_at(trace, 4, 1, 100) == std::vector<Request>{{4, 4}});
  }
}

TEST_CASE("the shared prefix is what all requests of the batch have in common") {
  const auto shared = [](const std::vector<TraceRequest>& trace, std::int64_t requests) {
    return replay_trace(trace, {requests, 100000, 1, seed_for(0, trace.size())})
        .shared_prefix_tokens;
  };
  const std::vector<TraceRequest> trace = {
      {1600, 1, {0, 1, 2, 3}}, {1500, 1, {0, 1, 7}}, {1100, 1, {0, 1, 2}}, {600, 1, {5, 1}}};
  CHECK(shared(trace, 3) == 1024);
  CHECK(shared(trace, 4) == 0);
  CHECK(shared({{1100, 1, {0, 1, 2}}, {1100, 1, {0, 1, 2}}}, 2) == 1100);
  CHECK(shared({{1100, 1, {0, 1, 2}}}, 1) == 0);
  CHECK(shared({{1100, 1}, {1100, 1}}, 2) == 0);
}

}  // namespace

}  // namespace attnbench
