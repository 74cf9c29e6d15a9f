#include <doctest/doctest.h>
#include <fmt/format.h>
#include <unistd.h>

#include <algorithm>
#include <cmath>
#include <cstdlib>
#include <cstring>
#include <filesystem>
#include <new>
#include <stdexcept>

#include "backends/reference_sources.h"
#include "bench/bench.h"
#include "bench/cases/probe.h"
#include "bench/judge/ranks.h"
#include "bench/loop/fake_backend.h"
#include "bench/save.h"
#include "core/error.h"
#include "inputs/files/safetensors.h"
#include "inputs/make_inputs.h"

namespace attnbench {
namespace {

namespace fs = std::filesystem;

/// Decoder, H 4, Hk 2, D 16: a decode with context, a chunked prefill and a fresh prefill.
Problem example_problem() {
  Problem problem;
  problem.scenario = "suite";
  problem.case_name = "mixed";
  problem.attention.num_heads = 4;
  problem.attention.num_kv_heads = 2;
  problem.attention.head_size = problem.attention.v_head_size = 16;
  problem.attention.scale = 0.25;
  problem.kv_cache.num_blocks = 24;
  problem.batch = {{1, 33}, {5, 48}, {20, 20}};
  problem.timing.samples = 2;
  problem.timing.l2 = L2Mode::kWarm;
  return problem;
}

class Recorder final : public BenchObserver {
 public:
  void job_started(std::size_t, std::size_t, const Job&) override { ++started; }
  void phase(Phase phase) override { phases.emplace_back(to_string(phase)); }
  void job_finished(const Result& result) override { finished.push_back(result.status); }
  void notice(const std::string& text) override { notices.push_back(text); }
  int started = 0;
  std::vector<std::string> notices;
  std::vector<std::string> phases;
  std::vector<Status> finished;
};

struct Bench {
  Problem problem = example_problem();
  FakeBackend backend;
  BenchOptions options;
  Recorder recorder;

  Bench() {
    options.timing = false;
    options.num_threads = 1;
  }
  Job job() const { return {&problem, &backend, "suite/mixed/FLASH_ATTN", "attnbench run x", {}}; }
  Result run() { return run_jobs({job()}, options, recorder).front(); }
};

bool mentions(const Result& result, const std::string& text) {
  for (const std::string& reason : result.reasons) {
    if (reason.find(text) != std::string::npos) return true;
  }
  return false;
}

}  // namespace

TEST_CASE("a right output passes with its errors, LSE and identity") {
  Bench bench;
  const Result result = bench.run();
  CHECK(result.status == Status::kPassed);
  CHECK(result.reasons.empty());
  CHECK(result.id == "suite/mixed/FLASH_ATTN");
  CHECK(result.scenario == "suite");
  CHECK(result.case_name == "mixed");
  CHECK(result.backend == "FLASH_ATTN");
  CHECK(result.device == "cpu");
  CHECK(result.repro == "attnbench run x");
  CHECK(result.problem_json.find("\"num_heads\":4") != std::string::npos);
  REQUIRE(result.error);
  CHECK(result.error->max_abs > 0);
  CHECK(result.error->max_abs < 0.02);
  CHECK(result.error->err_ratio <= 2);
  CHECK(result.error->checked_rows == 26);
  CHECK(result.error->total_rows == 26);
  REQUIRE(result.lse_error);
  CHECK(result.lse_error->max_abs < 1e-5);
  CHECK_FALSE(result.quantization_error);
  CHECK_FALSE(result.timing);
  // Both draws.
  CHECK(bench.recorder.phases ==
        std::vector<std::string>{"inputs", "run", "reference", "run", "reference"});
}

TEST_CASE("graph timing on a device without graphs is told, not silently something else") {
  Bench bench;
  bench.options.timing = true;
  bench.problem.timing.mode = TimingMode::kGraph;
  const Result result = bench.run();
  REQUIRE(result.timing);
  CHECK(result.timing->mode == "stream");
  CHECK(bench.recorder.notices ==
        std::vector<std::string>{
            "suite: timing.mode graph: cpu has no graphs, so its times are of the stream"});
}

TEST_CASE("a case that goes on with the inputs of another one is told about as itself") {
  Bench bench;
  bench.options.timing = true;
  const fs::path path =
      fs::temp_directory_path() / fmt::format("run_jobs_test_{}.safetensors", ::getpid());
  const AttentionInputs drawn = make_inputs(bench.problem);
  Tensor query(Dtype::kBF16, {26, 4, 16});
  std::memcpy(query.bytes(), drawn.query.bytes(), query.size_bytes());
  const Tensor key = convert(drawn.key, Dtype::kF32);
  write_safetensors(path, {{"query", &query}, {"key", &key}, {"value", &drawn.value}}, {});
  bench.problem.inputs.file = path.string();
  Problem graph = bench.problem;
  graph.case_name = "graph";
  graph.timing.mode = TimingMode::kGraph;
  Problem blocks = graph;
  blocks.case_name = "blocks";
  blocks.kv_cache.num_blocks = 30;
  Job second = bench.job();
  Job third = second;
  second.problem = &graph;
  third.problem = &blocks;
  const std::vector<Result> results =
      run_jobs({bench.job(), second, third, third}, bench.options, bench.recorder);
  fs::remove(path);
  for (const Result& result : results) CHECK(result.status == Status::kPassed);
  const auto said = [&](const std::string& part) {
    return std::count_if(
        bench.recorder.notices.begin(), bench.recorder.notices.end(),
        [&](const std::string& notice) { return notice.find(part) != std::string::npos; });
  };
  CHECK(said("cpu has no graphs") == 2);
  CHECK(said("key") == 3);  // is of another dtype; a second backend of a case hears nothing new
}

TEST_CASE("a wrong output is incorrect, names the element and is not timed") {
  Bench bench;
  bench.options.timing = true;
  bench.backend.fault = [](PipelineOutput& output, int) { output.output.set(4 * 16 * 3, 9.0f); };
  const Result result = bench.run();
  CHECK(result.status == Status::kIncorrect);
  CHECK(mentions(result, "output[3, 0, 0] is 9"));
  CHECK_FALSE(result.timing);
  CHECK_FALSE(result.throughput);
  CHECK(bench.backend.runs == 3);  // again for the same bytes, and one request alone
}

TEST_CASE("a request alone is compared with the same request in the batch") {
  Bench bench;
  Result result = bench.run();
  REQUIRE(result.batch_invariance);
  CHECK(result.batch_invariance->request == 2);
  CHECK(result.batch_invariance->equal);
  CHECK(result.batch_invariance->max_abs == 0);

  // A backend whose low bits depend on how many requests there are.
  bench.backend.fault = [](PipelineOutput& output, int) {
    if (output.output.dim(0) == 20) output.output.set(5, output.output.at(5) * 1.01f);
  };
  result = bench.run();
  CHECK(result.status == Status::kPassed);
  CHECK_FALSE(result.batch_invariance->equal);
  CHECK(result.batch_invariance->max_abs > 0);

  bench.problem.attention.batch_invariant = true;
  result = bench.run();
  CHECK(result.status == Status::kIncorrect);
  CHECK(mentions(result, "not batch invariant: request 2 alone"));

  bench.problem.batch = {{1, 33}, {0, 0}};
  CHECK_FALSE(bench.run().batch_invariance);
}

TEST_CASE("an element that is never written is incorrect") {
  Bench bench;
  bench.backend.fault = [](PipelineOutput& output, int) { output.output.set(5, NAN); };
  CHECK(mentions(bench.run(), "NaN or infinity in different places"));
}

TEST_CASE("a base-2 LSE is incorrect and named") {
  Bench bench;
  bench.backend.fault = [](PipelineOutput& output, int) {
    for (std::int64_t i = 0; i < output.lse->num_elements(); ++i) {
      output.lse->set(i, output.lse->at(i) / std::log(2.0f));
    }
  };
  const Result result = bench.run();
  CHECK(result.status == Status::kIncorrect);
  CHECK(mentions(result, "base 2"));
}

TEST_CASE("a byte of the cache that should not have changed is incorrect") {
  Bench bench;
  bench.backend.fault = [](PipelineOutput& output, int) {
    output.cache->bytes()[3] ^= std::byte{1};
  };
  const Result result = bench.run();
  CHECK(result.status == Status::kIncorrect);
  CHECK(mentions(result, "cache write: "));
}

TEST_CASE("every run of a backend that is not deterministic is judged") {
  Bench bench;
  bench.backend.deterministic = false;
  bench.backend.fault = [](PipelineOutput& output, int run) {
    if (run == 2) output.output.set(0, 100.0f);  // 1 is that of a request alone
  };
  const Result result = bench.run();
  CHECK(result.status == Status::kIncorrect);
  CHECK(mentions(result, "second run: "));
}

TEST_CASE("two runs with different bytes are incorrect although each is within the limits") {
  Bench bench;
  bench.backend.fault = [](PipelineOutput& output, int run) {
    if (run == 1) output.lse->set(7, std::nextafter(output.lse->at(7), 100.0f));
  };
  const Result result = bench.run();
  CHECK(result.status == Status::kIncorrect);
  CHECK(mentions(result, "not deterministic: lse[0, 7]"));
  bench.backend.runs = 0;
  bench.backend.deterministic = false;  // and says so: then it is a notice
  bench.backend.fault = [](PipelineOutput& output, int run) {
    if (run == 2) output.lse->set(7, std::nextafter(output.lse->at(7), 100.0f));
  };
  CHECK(bench.run().status == Status::kPassed);
  REQUIRE(bench.recorder.notices.size() == 1);
  CHECK(bench.recorder.notices.front().find("not deterministic: lse[0, 7]") != std::string::npos);
}

TEST_CASE("a defect that the pipeline saw itself is incorrect") {
  Bench bench;
  bench.backend.fault = [](PipelineOutput& output, int) { output.defect = "row 26 was written"; };
  const Result result = bench.run();
  CHECK(result.status == Status::kIncorrect);
  CHECK(mentions(result, "row 26 was written"));
}

TEST_CASE("exceptions of a backend become errors of its job alone") {
  Bench bench;
  const auto message_of = [&](auto exception) {
    bench.backend.fault = [=](PipelineOutput&, int) { throw exception; };
    const Result result = bench.run();
    CHECK(result.status == Status::kError);
    CHECK_FALSE(result.timing);
    REQUIRE(result.reasons.size() == 1);
    return result.reasons.front();
  };
  CHECK(message_of(Error(ErrorKind::kCapacity, "too large")) == "E-CAPACITY: too large");
  CHECK(message_of(std::bad_alloc()) == "E-CAPACITY: out of memory");
  CHECK(message_of(std::runtime_error("odd")) == "E-INTERNAL: odd");

  FakeBackend fine;
  const Job second{&bench.problem, &fine, "suite/mixed/OTHER", "", {}};
  const auto results = run_jobs({bench.job(), second}, bench.options, bench.recorder);
  CHECK(results[0].status == Status::kError);
  CHECK(results[1].status == Status::kPassed);
}

TEST_CASE("an output of another shape is an error, not a comparison") {
  Bench bench;
  bench.backend.fault = [](PipelineOutput& output, int) {
    output.output = Tensor(Dtype::kBF16, {27, 4, 16});
  };
  const Result result = bench.run();
  CHECK(result.status == Status::kError);
  CHECK(mentions(result, "expected shape [26, 4, 16], got [27, 4, 16]"));
}

TEST_CASE("an unsupported backend is not prepared and lists all reasons") {
  Bench bench;
  bench.backend.reasons = {"head_size not supported", "dtype not supported"};
  Job job = bench.job();
  job.extra_refusals = {"no such device"};
  const Result result = run_jobs({job}, bench.options, bench.recorder).front();
  CHECK(result.status == Status::kUnsupported);
  CHECK(result.reasons == std::vector<std::string>{"no such device", "head_size not supported",
                                                   "dtype not supported"});
  CHECK(bench.backend.prepared == 0);
  CHECK(bench.recorder.phases.empty());
}

TEST_CASE("after a request to stop the remaining jobs are skipped") {
  Bench bench;
  bench.options.should_stop = [&] { return bench.recorder.finished.size() >= 1; };
  const auto results =
      run_jobs({bench.job(), bench.job(), bench.job()}, bench.options, bench.recorder);
  REQUIRE(results.size() == 3);
  CHECK(results[0].status == Status::kPassed);
  CHECK(results[1].status == Status::kSkipped);
  CHECK(results[2].reasons == std::vector<std::string>{"interrupted"});
  CHECK(bench.recorder.started == 3);
  CHECK(bench.recorder.finished.size() == 3);
}

TEST_CASE("a job stopped in the middle is skipped without half a result") {
  Bench bench;
  bench.options.should_stop = [&] { return bench.backend.runs > 0; };
  const Result result = bench.run();
  CHECK(result.status == Status::kSkipped);
  CHECK(result.reasons == std::vector<std::string>{"interrupted"});
  CHECK_FALSE(result.error);
}

TEST_CASE("without validation a result is unverified and runs once") {
  Bench bench;
  bench.options.validate = false;
  bench.backend.fault = [](PipelineOutput& output, int) { output.output.set(0, 9.0f); };
  const Result result = bench.run();
  CHECK(result.status == Status::kUnverified);
  CHECK_FALSE(result.error);
  CHECK(bench.backend.runs == 1);
}

TEST_CASE("only the selected rows are checked") {
  Bench bench;
  bench.problem.validation.max_rows = 4;
  const Result result = bench.run();
  CHECK(result.status == Status::kPassed);
  CHECK(result.error->checked_rows == 4);
  CHECK(result.error->total_rows == 26);
}

TEST_CASE("saved tensors have the names and shapes of the contract") {
  Bench bench;
  std::string name = (fs::temp_directory_path() / "attnbench_bench_XXXXXX").string();
  bench.options.save_dir = fs::path(mkdtemp(name.data())) / "tensors";
  bench.options.save = SaveTensors::kAlways;
  bench.problem.validation.max_rows = 4;
  REQUIRE(bench.run().status == Status::kPassed);
  const SafetensorsFile file =
      read_safetensors(bench.options.save_dir / "suite__mixed__FLASH_ATTN.safetensors");
  const auto check = [&](const char* tensor, Dtype dtype, const std::vector<std::int64_t>& shape) {
    CAPTURE(tensor);
    REQUIRE(file.find(tensor) != nullptr);
    CHECK(file.find(tensor)->dtype() == dtype);
    CHECK(file.find(tensor)->shape() == shape);
  };
  check("query", Dtype::kBF16, {26, 4, 16});
  check("key", Dtype::kBF16, {101, 2, 16});
  check("value", Dtype::kBF16, {101, 2, 16});
  check("query_start_loc", Dtype::kI32, {4});
  check("seq_lens", Dtype::kI32, {3});
  check("output", Dtype::kBF16, {26, 4, 16});
  check("lse", Dtype::kF32, {4, 26});
  check("reference_output", Dtype::kF64, {26, 4, 16});
  check("reference_lse", Dtype::kF64, {4, 26});
  check("checked_rows", Dtype::kI32, {4});
  check("kv_cache", Dtype::kBF16, {2, 24, 16, 2, 16});
  CHECK(file.find("block_table") != nullptr);
  CHECK(file.find("slot_mapping") != nullptr);
  CHECK(file.find("key_dequantized") == nullptr);
  CHECK(file.find("sinks") == nullptr);
  CHECK(file.metadata.at("backend") == "FLASH_ATTN");
  CHECK(file.metadata.at("problem").find("\"head_size\":16") != std::string::npos);

  const Tensor& reference = *file.find("reference_output");
  const Tensor& rows = *file.find("checked_rows");
  std::int64_t numbers = 0;
  for (std::int64_t t = 0; t < 26; ++t) numbers += !std::isnan(reference.data<double>()[t * 64]);
  CHECK(numbers == 4);
  for (std::int64_t i = 0; i < 4; ++i) {
    CHECK_FALSE(std::isnan(reference.data<double>()[rows.data<std::int32_t>()[i] * 64]));
  }
  fs::remove_all(bench.options.save_dir.parent_path());
}

TEST_CASE("with save failed only incorrect results are written") {
  Bench bench;
  std::string name = (fs::temp_directory_path() / "attnbench_bench_XXXXXX").string();
  bench.options.save_dir = mkdtemp(name.data());
  bench.options.save = SaveTensors::kFailed;
  bench.run();
  CHECK(fs::is_empty(bench.options.save_dir));
  bench.backend.fault = [](PipelineOutput& output, int) { output.output.set(0, 9.0f); };
  bench.run();
  CHECK(fs::exists(bench.options.save_dir / "suite__mixed__FLASH_ATTN.safetensors"));
  fs::remove_all(bench.options.save_dir);
}

TEST_CASE("a passed job is timed step by step") {
  Bench bench;
  bench.options.timing = true;
  const Result result = bench.run();
  REQUIRE(result.status == Status::kPassed);
  REQUIRE(result.timing);
  CHECK(result.timing->samples_us.size() == 2);
  CHECK(result.timing->l2 == "warm");
  REQUIRE(result.timing->steps.size() == 2);
  CHECK(result.timing->steps[0].name == "write_cache");
  CHECK(result.timing->steps[1].flops == 256);
  CHECK(result.timing->total_us >= result.timing->median_us);
  REQUIRE(result.throughput);
  CHECK(result.throughput->flops > 0);
  CHECK(bench.recorder.phases.back() == "timing");
}

TEST_CASE("file names of tensors hold no folder") {
  CHECK(tensor_file_name("a/b,c=1/D") == "a__b,c=1__D.safetensors");
}

namespace {

/// Right partial results of every rank, as a DCP pipeline gives them.
void add_partials(const Problem& problem, PipelineOutput& output) {
  const AttentionInputs inputs = make_inputs(problem);
  const AttentionMath math = resolve_attention_math(problem, KernelRules{});
  const AttentionSpec& a = problem.attention;
  const std::int64_t tokens = inputs.num_tokens();
  std::vector<std::int32_t> rows;
  for (std::int32_t t = 0; t < tokens; ++t) rows.push_back(t);
  Tensor partial(Dtype::kF32, {problem.dcp.world_size, tokens, a.num_heads, a.v_head_size});
  Tensor lse(Dtype::kF32, {problem.dcp.world_size, a.num_heads, tokens});
  std::int64_t next = 0;
  std::int64_t next_lse = 0;
  for (int rank = 0; rank < problem.dcp.world_size; ++rank) {
    const auto exact =
        rank_reference(problem, math, inputs, reference_sources(inputs), rank, rows, {1, {}});
    for (const double x : exact->output) partial.set(next++, static_cast<float>(x));
    for (const double x : exact->lse) lse.set(next_lse++, static_cast<float>(x));
  }
  output.more = {{"rank_output", std::move(partial)}, {"rank_lse", std::move(lse)}};
}

/// The fake has one cache; ranks are looked at through their partials alone.
void drop_cache(PipelineOutput& output) { output.cache.reset(); }

}  // namespace

TEST_CASE("the partial result of every rank is judged against its own keys") {
  Bench bench;
  bench.problem.dcp.world_size = 2;
  bench.backend.fault = [&](PipelineOutput& output, int) {
    drop_cache(output);
    add_partials(bench.problem, output);
  };
  bench.backend.probe_fault = [&](PipelineOutput& output, int) {
    drop_cache(output);
    add_partials(probe_problem(bench.problem), output);
  };
  const Result result = bench.run();
  CAPTURE(result.reasons.empty() ? std::string() : result.reasons.front());
  CHECK(result.status == Status::kPassed);
  REQUIRE(result.rank_errors.size() == 2);
  CHECK(result.rank_errors[1].rank == 1);
  CHECK(result.rank_errors[1].error.max_abs < 1e-5);
  CHECK(result.rank_errors[1].error.checked_rows == 26);
  CHECK(result.rank_errors[1].lse_error.max_abs < 1e-5);
}

TEST_CASE("a rank whose LSE is in base 2 is named with its mistake") {
  Bench bench;
  bench.problem.dcp.world_size = 2;
  bench.backend.fault = [&](PipelineOutput& output, int) {
    drop_cache(output);
    add_partials(bench.problem, output);
    Tensor& lse = output.more[1].second;
    for (std::int64_t i = lse.num_elements() / 2; i < lse.num_elements(); ++i) {
      lse.set(i, lse.at(i) / std::log(2.0f));
    }
  };
  const Result result = bench.run();
  CHECK(result.status == Status::kIncorrect);
  CHECK(mentions(result, "rank 1: LSE is in base 2"));
  CHECK_FALSE(mentions(result, "rank 0"));
}

TEST_CASE("a merged LSE in base 2 is named as such, without blaming a rank") {
  Bench bench;
  bench.problem.dcp.world_size = 2;
  bench.backend.fault = [&](PipelineOutput& output, int) {
    drop_cache(output);
    add_partials(bench.problem, output);
    for (std::int64_t i = 0; i < output.lse->num_elements(); ++i) {
      output.lse->set(i, output.lse->at(i) / std::log(2.0f));
    }
  };
  const Result result = bench.run();
  CHECK(result.status == Status::kIncorrect);
  CHECK(mentions(result, "LSE is in base 2"));
  CHECK_FALSE(mentions(result, "rank "));
}

}  // namespace attnbench
