// Whole scenarios: structure errors with their places, sweeps and names, shipped files.
#include "scenario/scenario.h"

#include <algorithm>
#include <sstream>

#include "core/problem/fields.h"
#include "core/sha256.h"
#include "scenario/test_support.h"

namespace attnbench {
namespace {

using namespace testing;

TEST_CASE("a minimal scenario gets the defaults of the contract") {
  const Problem problem =
      only_case("name: x\nattention: {num_heads: 32, head_size: 128}\nbatch: q8k");
  CHECK(problem.scenario == "x");
  CHECK(problem.case_name == "q8k");
  CHECK(problem.attention.type == AttentionType::kDecoder);
  CHECK(problem.attention.num_kv_heads == 32);
  CHECK(problem.attention.v_head_size == 128);
  CHECK(problem.attention.dtype == Dtype::kBF16);
  CHECK(problem.attention.causal);
  CHECK(problem.attention.scale == doctest::Approx(0.08838834764831845));
  CHECK(problem.kv_cache.block_size == 16);
  CHECK(problem.batch == std::vector<Request>{{8192, 8192}});
}

TEST_CASE("JSON scenarios load like YAML ones") {
  const Problem problem = only_case(
      R"({"schema":1,"name":"x","attention":{"num_heads":8,"head_size":64,"sinks":[0,0,0,0,0,0,0,"-inf"]},
          "batch":[{"count":2,"query_len":1,"seq_len":9}],"backends":["REFERENCE"]})");
  CHECK(problem.batch == std::vector<Request>{{1, 9}, {1, 9}});
  CHECK(problem.case_name == "2q1s9");
  CHECK(problem.backends == std::vector<std::string>{"REFERENCE"});
  CHECK(problem.attention.sink_values.size() == 8);
}

TEST_CASE("unknown keys name the nearest valid one") {
  CHECK(error_of("name: t\nbatch: q1\nattention:\n  num_heads: 8\n  head_sise: 64\n") ==
        "E-FORMAT: s.yaml:5: unknown key 'attention.head_sise'; did you mean 'head_size'?");
  CHECK(error_of(base_text("batc: q1\n")) ==
        "E-FORMAT: s.yaml:3: unknown key 'batc'; did you mean 'batch'?");
  CHECK(
      error_of(base_text("batch: q1\nsliding_window: 5\n")) ==
      "E-FORMAT: s.yaml:4: unknown key 'sliding_window'; did you mean 'attention.sliding_window'?");
  CHECK(error_of(base_text("batch: q1\nattention.head_size: 5\n")) ==
        "E-FORMAT: s.yaml:4: unknown key 'attention.head_size'; 'head_size' belongs under "
        "'attention:'");
  CHECK(error_of(base_text("batch: q1\ntriton: {zzzzzz: 5}\n")) ==
        "E-FORMAT: s.yaml:4: unknown key 'triton.zzzzzz'; valid keys: path, capture_sizes");
  CHECK(error_of(base_text("batch: q1\nmla: {sparse: {valud: 0.5}}\n")) ==
        "E-FORMAT: s.yaml:4: unknown key 'mla.sparse.valud'; did you mean 'valid'?");
  CHECK(error_of(base_text("batch: q1\nsweep: {attention.head_sise: [1]}\n")) ==
        "E-FORMAT: s.yaml:4: unknown sweep key 'attention.head_sise'; did you mean "
        "'attention.head_size'?");
  CHECK(error_of(base_text("batch: q1\nsweep: {name: [a]}\n")).find("unknown sweep key 'name'") !=
        std::string::npos);
}

TEST_CASE("wrong types say what was expected and found") {
  const auto error_with = [](const std::string& line) {
    return error_of(base_text("batch: q1\n" + line));
  };
  CHECK(
      error_of("name: t\nattention: {num_heads: '8', head_size: 64}\nbatch: q1\n") ==
      "E-FORMAT: s.yaml:2: attention.num_heads: expected an integer >= 1 and <= 65536, found '8'");
  CHECK(error_with("kv_cache:\n  block_size: 16.0\n") ==
        "E-FORMAT: s.yaml:5: kv_cache.block_size: expected an integer >= 1, found 16.0");
  CHECK(
      error_with("kv_cache: {dtype: fp8_e4m4}\n") ==
      "E-FORMAT: s.yaml:4: kv_cache.dtype: expected one of auto, float16, bfloat16, fp8, fp8_e4m3, "
      "fp8_e5m2, int8_per_token_head, fp8_per_token_head, int4_per_token_head, nvfp4, fp8_ds_mla, "
      "fp8_model1_mla, turboquant_k8v4, turboquant_4bit_nc, turboquant_k3v4_nc, "
      "turboquant_3bit_nc, found 'fp8_e4m4'; did you "
      "mean 'fp8_e4m3'?");
  CHECK(error_with("kv_cache: {dtype: turboquant_2bit_nc}\n")
            .find("found 'turboquant_2bit_nc'; vLLM defines four presets of TurboQuant") !=
        std::string::npos);
  CHECK(error_with("kv_cache: {shuffle_blocks: yes}\n") ==
        "E-FORMAT: s.yaml:4: kv_cache.shuffle_blocks: expected true or false, found 'yes'");
  CHECK(error_with("dcp: 4\n") ==
        "E-FORMAT: s.yaml:4: dcp: expected a mapping with world_size, interleave_size, comm, "
        "transport, overlap, found 4");
  CHECK(error_with("kv_cache: {block_size: null}\n") ==
        "E-FORMAT: s.yaml:4: kv_cache.block_size: expected an integer >= 1, found null");
  CHECK(error_with("schema: 2\n") == "E-FORMAT: s.yaml:4: schema: expected 1, found 2");
  CHECK(error_with("backends: FLASH_ATTN\n").starts_with("E-FORMAT: s.yaml:4: backends: expected"));
  CHECK(error_with("backends: [1]\n").starts_with("E-FORMAT: s.yaml:4: backends: expected"));
  CHECK(error_with("sweep: [1]\n").starts_with("E-FORMAT: s.yaml:4: sweep: expected a mapping"));
  CHECK(error_with("sweep: {kv_cache.block_size: 16}\n") ==
        "E-FORMAT: s.yaml:4: sweep.kv_cache.block_size: expected a list of values, found 16");
  CHECK(error_with("sweep: {kv_cache.block_size: []}\n").starts_with("E-FORMAT: s.yaml:4: "));
  CHECK(error_with("sweep:\n  kv_cache.block_size:\n  - 16\n  - x\n") ==
        "E-FORMAT: s.yaml:7: kv_cache.block_size: expected an integer >= 1, found 'x'");
  CHECK(error_with("mm_encoder: {layer_names: {template: a, count: 2}}\n")
            .starts_with("E-FORMAT: s.yaml:4: mm_encoder.layer_names: expected {template"));
  CHECK(error_of("[1, 2]\n") ==
        "E-FORMAT: s.yaml:1: expected a mapping of scenario keys, found a list of 2");
  CHECK(error_of("hello\n") ==
        "E-FORMAT: s.yaml:1: expected a mapping of scenario keys, found 'hello'");
}

TEST_CASE("numbers out of range are errors of their own class") {
  const auto error_with = [](const std::string& line) {
    return error_of(base_text("batch: q1\n" + line));
  };
  CHECK(error_of("name: t\nattention: {num_heads: -8, head_size: 64}\nbatch: q1\n") ==
        "E-CONFIG: s.yaml:2: attention.num_heads: expected an integer >= 1 and <= 65536, found -8");
  CHECK(error_with("timing: {max_noise: 0}\n") ==
        "E-CONFIG: s.yaml:4: timing.max_noise: expected a number > 0, found 0");
  CHECK(error_with("kv_cache: {k_scale: -1}\n").starts_with("E-VALUE: s.yaml:4: kv_cache.k_scale"));
  CHECK(error_with("kv_cache: {k_scale: [1, 0]}\n").starts_with("E-VALUE: s.yaml:4: "));
  CHECK(error_with("kv_cache: {q_scale: .inf}\n").starts_with("E-VALUE: s.yaml:4: "));
  CHECK(error_with("kv_cache: {v_scale: .nan}\n").starts_with("E-VALUE: s.yaml:4: "));
  CHECK(error_with("inputs: {std: 1e999}\n") ==
        "E-FORMAT: s.yaml:4: inputs.std: expected a number in range, found 1e999");
  CHECK(error_with("inputs: {seed: 100000000000000000000000000000000}\n")
            .starts_with("E-FORMAT: s.yaml:4: inputs.seed: expected a number in range"));
  CHECK(error_with("mla: {sparse: {valid: 1.5}}\n") ==
        "E-CONFIG: s.yaml:4: mla.sparse.valid: expected a number >= 0 and <= 1, found 1.5");
  CHECK(error_with("dcp: {world_size: 0}\n").starts_with("E-CONFIG: s.yaml:4: dcp.world_size"));
}

TEST_CASE("all structural errors are shown together, twenty at most") {
  const std::string message =
      error_of("name: T\nattention:\n  num_head: 8\n  head_size: no\nbatch: q1 \nfoo: 1\n");
  CHECK(
      message ==
      "E-FORMAT: s.yaml:1: name: expected text of [a-z0-9._-], at most 100, found 'T'\n"
      "E-FORMAT: s.yaml:3: unknown key 'attention.num_head'; did you mean 'num_heads'?\n"
      "E-FORMAT: s.yaml:4: attention.head_size: expected an integer >= 1 and <= 65536, found 'no'\n"
      "E-FORMAT: s.yaml:6: unknown key 'foo'; valid keys: schema, name, description, extends, "
      "batch, "
      "backends, sweep, attention, triton, mla, mm_encoder, engine, kv_cache, batch_options, "
      "cascade, "
      "dcp, output_quant, op, inputs, validation, timing");
  std::string many = "name: t\n";
  for (int i = 0; i < 50; ++i) many += "key_" + std::to_string(i) + "xxxxxxxxxx: 1\n";
  const std::string cut = error_of(many);
  CHECK(std::count(cut.begin(), cut.end(), '\n') == 20);
  CHECK(cut.ends_with("\n(more left out)"));
}

TEST_CASE("every line of several errors names its own class") {
  CHECK(error_of("name: T\nattention: {num_heads: 8, head_size: 64, logits_soft_cap: -1}\n"
                 "batch: q1\n") ==
        "E-FORMAT: s.yaml:1: name: expected text of [a-z0-9._-], at most 100, found 'T'\n"
        "E-CONFIG: s.yaml:2: attention.logits_soft_cap: expected a number >= 0, found -1");
}

TEST_CASE("a scenario knows where it names backends, files and scales of a cache") {
  const Scenario scenario = parse_scenario(
      base_text("batch: q1\nbackends: [FLASH_ATTN,\n  TRITON_ATTN]\ninputs:\n  file: a\n"),
      "s.yaml");
  CHECK(scenario.backend_places == std::vector<std::string>{"s.yaml:4: ", "s.yaml:5: "});
  CHECK(scenario.places == std::map<std::string, std::string>{{"inputs.file", "s.yaml:7: "}});
  const Scenario scaled =
      parse_scenario(base_text("batch: q1\nkv_cache:\n  k_scale: 1.0\n  dtype: fp8\n"
                               "sweep:\n  kv_cache.q_scale: [1, 2]\n"),
                     "s.yaml");
  CHECK(scaled.places == std::map<std::string, std::string>{{"kv_cache.k_scale", "s.yaml:5: "},
                                                            {"kv_cache.q_scale", "s.yaml:8: "}});
}

TEST_CASE("a row among batch specs is told what it lacks, and is not taken for a trace") {
  for (const char* text : {"batch: [q4, {count: 2, query_len: 3, seq_len: 5}]\n",
                           "batch: {count: 2, query_len: 3, seq_len: 5}\n"}) {
    CHECK(error_of(base_text(text)) ==
          "E-FORMAT: s.yaml:3: batch: expected a list of {count, query_len, seq_len} for one case, "
          "found one outside such a list; several cases are a list of batch specs or of such "
          "lists");
  }
  CHECK(names_of(base_text("batch: [q4, [{count: 2, query_len: 3, seq_len: 5}]]\n")) ==
        std::vector<std::string>{"q4", "2q3s5"});
}

TEST_CASE("name and dims are required") {
  CHECK(error_of("batch: q1\n") == "E-FORMAT: s.yaml:1: expected the key 'name', found none");
  CHECK(error_of("name: t\nbatch: q1\n") ==
        "E-FORMAT: s.yaml:1: attention.num_heads: expected a value, found none");
  CHECK(error_of("name: t\nattention: {num_heads: 8}\nbatch: q1\n") ==
        "E-FORMAT: s.yaml:1: attention.head_size: expected a value, found none");
  CHECK(error_of(base_text("")) == "E-FORMAT: s.yaml:1: batch: expected a batch, found none");
}

TEST_CASE("batches: a list of specs is several cases, a list of rows one") {
  CHECK(names_of(base_text("batch: [q8k, 64q1s8k]\n")) ==
        std::vector<std::string>{"q8k", "64q1s8k"});
  CHECK(names_of(base_text("batch:\n- {query_len: 1, seq_len: 4096}\n"
                           "- {count: 2, query_len: 0, seq_len: 0}\n")) ==
        std::vector<std::string>{"q1s4k_2q0s0"});
  CHECK(names_of(base_text("batch: [q1, [{query_len: 2, seq_len: 2}]]\n")) ==
        std::vector<std::string>{"q1", "q2"});
  const auto error_with = [](const std::string& batch) {
    return error_of(base_text("batch: " + batch + "\n"));
  };
  CHECK(error_with("q8K").starts_with("E-CONFIG: s.yaml:3: batch: expected a batch of segments"));
  CHECK(error_with("q8s4").starts_with("E-CONFIG: s.yaml:3: batch: expected a batch of segments"));
  CHECK(error_with("7").starts_with("E-FORMAT: s.yaml:3: batch: expected a batch spec such as"));
  CHECK(error_with("[]").starts_with("E-FORMAT: s.yaml:3: batch: expected a batch spec such as"));
  CHECK(error_with("[[q1]]").starts_with("E-FORMAT: s.yaml:3: batch: expected a batch spec"));
  CHECK(error_with("[{count: 1, query_len: 1}]") ==
        "E-FORMAT: s.yaml:3: batch: expected the key 'seq_len'");
  CHECK(error_with("[{query_len: 1, seq_len: 1, cuont: 2}]") ==
        "E-FORMAT: s.yaml:3: unknown key 'batch.cuont'; did you mean 'count'?");
  CHECK(error_with("[{query_len: -1, seq_len: 1}]") ==
        "E-CONFIG: s.yaml:3: batch.query_len: expected an integer from 0 to 2147483647, found -1");
  CHECK(error_with("[{query_len: 5, seq_len: 4}]")
            .starts_with("E-VALUE: s.yaml:3: batch: expected seq_len >= query_len"));
  CHECK(error_with("[{count: 1000000, query_len: 1, seq_len: 1}, {query_len: 1, seq_len: 1}]")
            .starts_with("E-CAPACITY: s.yaml:3: batch: expected at most 1000000 requests"));
  CHECK(error_with("[{count: 3, query_len: 1, seq_len: 1000000000}]")
            .starts_with("E-CAPACITY: s.yaml:3: batch: expected at most"));
}

TEST_CASE("a trace gives the batch of a step, named by the step") {
  const TempFolder folder;
  folder.write("t.csv", "TIMESTAMP,ContextTokens,GeneratedTokens\nx,10,3\n");
  const auto file =
      folder.write("s.yaml", base_text("batch: {trace: t.csv, format: azure_llm, requests: 1, "
                                       "max_batched_tokens: 8, step: 2}\n"));
  const Problem problem = load_scenario(file).cases.at(0);
  CHECK(problem.batch == std::vector<Request>{{2, 10}});
  CHECK(problem.case_name == "trace-step2");
  CHECK(error_of(base_text("batch: {trace: none.csv, format: azure_llm}\n"))
            .starts_with("E-IO: s.yaml:3: batch.trace: none.csv: expected a readable file"));
  CHECK(error_of(base_text("batch: {trace: t.csv}\n")) ==
        "E-FORMAT: s.yaml:3: batch: expected the key 'format'");
  CHECK(error_of(base_text("batch: {trace: t.csv, format: tsv}\n")) ==
        "E-FORMAT: s.yaml:3: batch.format: expected one of azure_llm, mooncake, burstgpt, csv, "
        "vllm_bench, sglang_bench, sglang_log, vllm_log, found 'tsv'");
  CHECK(error_of(base_text("batch: {trace: t.csv, format: mooncake, step: 0}\n")) ==
        "E-CONFIG: s.yaml:3: batch.step: expected an integer from 1 to 10000000, found 0");
  CHECK(error_of(base_text("batch: {trace: t.csv, format: mooncake, stpe: 1}\n")) ==
        "E-FORMAT: s.yaml:3: unknown key 'batch.stpe'; did you mean 'step'?");
}

TEST_CASE("a mooncake trace offers its shared prefix in whole pages") {
  const TempFolder folder;
  const std::string line = R"({"timestamp":0,"input_length":1000,"output_length":9,"hash_ids":[0,)";
  folder.write("t.jsonl", line + "1]}\n" + line + "2]}\n");
  const std::string batch =
      "batch: {trace: t.jsonl, format: mooncake, requests: 2, step: 2}\nkv_cache: {block_size: "
      "48}\n";
  const auto file = folder.write("s.yaml", base_text(batch));
  // 512 shared tokens are 10 pages of 48.
  CHECK(load_scenario(file).cases.at(0).cascade.common_prefix_len == 480);
  const auto given =
      folder.write("g.yaml", base_text(batch + "cascade: {common_prefix_len: 96}\n"));
  CHECK(load_scenario(given).cases.at(0).cascade.common_prefix_len == 96);
  // In step 1 both prompts are fresh: no prefix is cached yet.
  const ScenarioOptions first{.overrides = {{"batch.step", "1"}}, .search_path = {}};
  CHECK(load_scenario(file, first).cases.at(0).cascade.common_prefix_len == 0);
}

TEST_CASE("a scenario knows the files that it was read from") {
  const TempFolder folder;
  folder.write("in/trace.csv", "TIMESTAMP,ContextTokens,GeneratedTokens\n0,10,5\n0,20,5\n");
  const auto base = folder.write("in/base.yaml", base_text("timing: {samples: 3}\n"));
  const std::string batch = "{trace: in/trace.csv, format: azure_llm, requests: 2, step: 2}";
  const auto file = folder.write("s.yaml", "name: s\nextends: in/base.yaml\nbatch: q1\n");
  CHECK(load_scenario(file).files == std::set<std::filesystem::path>{file, base});
  const auto traced = folder.write(
      "t.yaml", "name: t\nextends: in/base.yaml\nsweep:\n  batch: [q1, " + batch + "]\n");
  CHECK(load_scenario(traced).files ==
        std::set<std::filesystem::path>{traced, base, folder.path() / "in/trace.csv"});
}

TEST_CASE("a sweep is a product in file order, the first key slowest") {
  CHECK(names_of(base_text("batch: [q8k, q1s4k]\nsweep:\n  kv_cache.dtype: [auto, fp8_e4m3]\n"
                           "  attention.scale: [1, 0.5]\n")) ==
        std::vector<std::string>{"q8k,kv_cache.dtype=auto,attention.scale=1",
                                 "q8k,kv_cache.dtype=auto,attention.scale=0.5",
                                 "q8k,kv_cache.dtype=fp8_e4m3,attention.scale=1",
                                 "q8k,kv_cache.dtype=fp8_e4m3,attention.scale=0.5",
                                 "q1s4k,kv_cache.dtype=auto,attention.scale=1",
                                 "q1s4k,kv_cache.dtype=auto,attention.scale=0.5",
                                 "q1s4k,kv_cache.dtype=fp8_e4m3,attention.scale=1",
                                 "q1s4k,kv_cache.dtype=fp8_e4m3,attention.scale=0.5"});
}

TEST_CASE("a swept batch keeps its place in the order and stands first in the name") {
  CHECK(names_of(base_text("batch: q999\nsweep: {attention.head_size: [64, 128], "
                           "batch: [q8k, [{query_len: 1, seq_len: 5}]]}\n")) ==
        std::vector<std::string>{"q8k,attention.head_size=64", "q1s5,attention.head_size=64",
                                 "q8k,attention.head_size=128", "q1s5,attention.head_size=128"});
}

TEST_CASE("swept values may be lists, mappings and null, and each reaches its case") {
  const std::vector<Problem> cases =
      cases_of(base_text("batch: q8\nkv_cache: {dtype: fp8}\n"
                         "sweep:\n  kv_cache.k_scale: [1.0, [0.5, 2.0]]\n"
                         "  attention.mm_prefix_ranges: [{}, {0: [[1, 4]]}]\n"
                         "  attention.sliding_window: [null, 3]\n"));
  REQUIRE(cases.size() == 8);
  CHECK(cases[7].kv_cache.k_scale == std::vector<double>{0.5, 2.0});
  CHECK(cases[7].attention.mm_prefix_ranges.at(0).at(0) == std::array<std::int64_t, 2>{1, 4});
  CHECK(cases[7].attention.sliding_window == 3);
  CHECK(cases[0].attention.mm_prefix_ranges.empty());
  CHECK(cases[7].case_name ==
        "q8,kv_cache.k_scale=[0.5,2.0],attention.mm_prefix_ranges={\"0\":[[1,4]]},"
        "attention.sliding_window=3");
  CHECK(cases[0].case_name ==
        "q8,kv_cache.k_scale=1.0,attention.mm_prefix_ranges={},attention.sliding_window=null");
}

TEST_CASE("long names are cut and hashed, slashes replaced, repeats numbered") {
  std::string spec = "q1s2";
  for (int i = 2; i < 40; ++i) spec += "_q" + std::to_string(i);
  const std::string name = only_case(base_text("batch: " + spec + "\n")).case_name;
  CHECK(name == spec.substr(0, 100) + "-" + sha256_hex(spec).substr(0, 8));
  CHECK(names_of(base_text("batch: q1\nsweep: {inputs.file: [a/b.safetensors]}\n")) ==
        std::vector<std::string>{"q1,inputs.file=a_b.safetensors"});
  CHECK(names_of(base_text("batch: [q1, q1, q1s1]\n")) ==
        std::vector<std::string>{"q1", "q1#2", "q1#3"});
}

TEST_CASE("a sweep of more than 100,000 cases is refused before any is built") {
  std::string hundred = "[";
  for (int i = 1; i <= 100; ++i) hundred += std::to_string(i) + (i < 100 ? "," : "]");
  const std::string text =
      base_text("batch: q1\nsweep:\n  inputs.seed: " + hundred + "\n  attention.scale: " + hundred +
                "\n  timing.samples: " + hundred + "\n");
  CHECK(error_of(text) == "E-CONFIG: s.yaml:7: sweep: expected at most 100000 cases, found more");
}

TEST_CASE("lists that would fill the memory over a sweep are refused") {
  std::string seeds;
  for (int i = 0; i < 100; ++i) seeds += std::to_string(i) + ",";
  CHECK(error_of(base_text("batch: 1000000q1\nsweep: {inputs.seed: [" + seeds + "]}\n")) ==
        "E-CAPACITY: s.yaml:1: expected batches and lists of at most 512 MiB over all cases, found "
        "more in the first 23 of 100 cases");
}

TEST_CASE("every shipped scenario loads") {
  const std::filesystem::path root = std::filesystem::path(ATTNBENCH_SOURCE_DIR) / "scenarios";
  int loaded = 0;
  for (const auto& entry : std::filesystem::recursive_directory_iterator(root)) {
    if (entry.path().extension() != ".yaml") continue;
    const ScenarioOptions options{.overrides = {}, .search_path = {root}};
    CAPTURE(entry.path().string());
    CHECK_NOTHROW(load_scenario(entry.path(), options));
    ++loaded;
  }
  if (loaded == 0) MESSAGE("skipped: no scenarios are there");
}

}  // namespace
}  // namespace attnbench
