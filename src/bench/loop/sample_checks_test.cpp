// Timed samples on the CPU: right pipelines of every form are judged right on the inputs of the
// sample, and what does not do the work is found.
#include "bench/loop/sample_checks.h"

#include "bench/trial/timed_samples.h"

#include <doctest/doctest.h>

#include <cstring>
#include <functional>
#include <iterator>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "core/error.h"
#include "core/system/clock.h"
#include "metadata/int_math.h"

namespace attnbench {
namespace {

Problem problem_of(std::vector<Request> batch) {
  Problem problem;
  problem.scenario = "suite";
  problem.case_name = "case";
  problem.attention.num_heads = 4;
  problem.attention.num_kv_heads = 2;
  problem.attention.head_size = problem.attention.v_head_size = 32;
  problem.attention.scale = 0.18;
  problem.attention.dtype = Dtype::kBF16;
  problem.batch = std::move(batch);
  for (const Request& request : problem.batch) {
    problem.kv_cache.num_blocks += ceil_div(request.seq_len, problem.kv_cache.block_size) + 1;
  }
  problem.timing.samples = 6;
  problem.timing.l2 = L2Mode::kWarm;
  return problem;
}

/// What a step of the pipeline is followed by, in run number `run` of all.
using Cheat = std::function<void(SampleSide& side, int run)>;

/// A pipeline that does what a cheat makes of it.
class Cheating final : public Pipeline {
 public:
  Cheating(std::unique_ptr<Pipeline> pipeline, Cheat cheat)
      : pipeline_(std::move(pipeline)), cheat_(std::move(cheat)), side_(*pipeline_->sample_side()) {
    steps_ = pipeline_->steps();
    steps_.push_back(counted_step("cheat", [this] { cheat_(side_, run_++); }));
  }
  const std::vector<Step>& steps() const override { return steps_; }
  void poison_outputs() override { pipeline_->poison_outputs(); }
  PipelineOutput read_output(bool with_cache) override {
    return pipeline_->read_output(with_cache);
  }
  std::optional<SampleSide> sample_side() override { return pipeline_->sample_side(); }

 private:
  std::unique_ptr<Pipeline> pipeline_;
  Cheat cheat_;
  SampleSide side_;
  std::vector<Step> steps_;
  int run_ = 0;
};

/// As the judge of a job does it.
void judge_samples(CaseRun& run, SampleChecks& checks, Result& result) {
  if (!checks.problem().empty()) result.reasons.push_back(checks.problem());
  for (const TimedSample& sample : checks.take_samples()) {
    if (!result.reasons.empty()) break;
    const auto finding = judge_timed_sample(run, sample.number, sample.nonce, sample.output);
    REQUIRE(finding);
    if (finding->check) result.timing->checked_samples.push_back(*finding->check);
    if (!finding->reason.empty()) result.reasons.push_back(finding->reason);
  }
  if (result.reasons.empty()) return;
  result.status = Status::kIncorrect;
  result.timing.reset();
}

/// A backend's samples of a problem, judged.
Result samples_of(const Problem& problem, const char* backend_name, const Cheat& cheat) {
  const Backend& backend = *find_backend(backend_name);
  CAPTURE(backend_name);
  REQUIRE(backend.refusals(problem, {}).empty());
  const std::unique_ptr<Case> own = make_case(problem, {1, {}});
  own->notices();
  const std::unique_ptr<CaseRun> run = own->start(backend);
  const std::unique_ptr<Ops> ops = make_cpu_ops(1);
  Cheating pipeline(run->prepare(*ops), cheat);
  for (const Step& step : pipeline.steps()) step.run();
  const PipelineOutput before = pipeline.read_output(true);
  SampleChecks checks(pipeline, *pipeline.sample_side(), make_cpu_sample_memory(), 1 << 20, true);
  ClockStopwatch stopwatch(steady_clock());
  Result result;
  result.status = Status::kPassed;
  result.timing = measure(pipeline.steps(), stopwatch, nullptr, steady_clock(),
                          {problem.timing, {}, 1, &checks});
  judge_samples(*run, checks, result);
  // Inputs are as they were: the same run gives the same bytes, and judges as before.
  if (result.status != Status::kPassed) return result;
  pipeline.poison_outputs();
  for (const Step& step : pipeline.steps()) step.run();
  const PipelineOutput after = pipeline.read_output(true);
  CHECK(describe_difference(before, after) == "");
  CHECK(run->check_stored(after) == run->check_stored(before));
  return result;
}

void check_passes(const Problem& problem, const char* backend) {
  const Result result = samples_of(problem, backend, [](SampleSide&, int) {});
  CHECK(result.reasons == std::vector<std::string>{});
  CHECK(result.status == Status::kPassed);
  REQUIRE(result.timing);
  CHECK(std::ssize(result.timing->checked_samples) == problem.timing.samples);
}

std::string reason_of(const Problem& problem, const Cheat& cheat) {
  const Result result = samples_of(problem, "FLASH_ATTN", cheat);
  CHECK(result.status == Status::kIncorrect);
  CHECK_FALSE(result.timing);
  REQUIRE(result.reasons.size() == 1);
  return result.reasons.front();
}

bool begins_with(const std::string& text, const std::string& beginning) {
  return text.rfind(beginning, 0) == 0;
}

const std::vector<Request> kMixed = {{1, 50}, {1, 97}, {40, 75}, {0, 20}, {33, 33}};

}  // namespace

TEST_CASE("samples over every form of the cache are right on their own inputs") {
  for (const char* backend : {"FLASH_ATTN", "TRITON_ATTN", "FLASH_ATTN_IX"}) {
    check_passes(problem_of(kMixed), backend);
    check_passes(problem_of({{1, 200}, {1, 70}, {1, 16}}), backend);
  }
  Problem fp8 = problem_of(kMixed);
  fp8.kv_cache.dtype = KvCacheDtype::kFp8E4M3;
  check_passes(fp8, "FLASH_ATTN");
  Problem per_token = problem_of(kMixed);
  per_token.kv_cache.dtype = KvCacheDtype::kInt8PerTokenHead;
  check_passes(per_token, "TRITON_ATTN");
  Problem shared = problem_of({{1, 100}, {1, 90}, {3, 80}});
  shared.cascade.common_prefix_len = 48;
  shared.cascade.mode = CascadeMode::kAlways;
  check_passes(shared, "FLASH_ATTN");
  Problem ranks = problem_of({{1, 100}, {1, 90}, {3, 80}});
  ranks.dcp.world_size = 2;
  check_passes(ranks, "FLASH_ATTN");
}

TEST_CASE("some heads of a request are right by themselves") {
  // So many keys and heads that those of the last two requests are a choice.
  Problem problem = problem_of(std::vector<Request>(17, {1, 4200}));
  problem.attention.num_heads = 256;
  problem.attention.head_size = problem.attention.v_head_size = 8;
  problem.timing.samples = 3;
  check_passes(problem, "FLASH_ATTN");
  problem.kv_cache.dtype = KvCacheDtype::kFp8E4M3;
  check_passes(problem, "FLASH_ATTN");
}

TEST_CASE("samples over keys without a cache are right on their own inputs") {
  Problem encoder = problem_of({{40, 40}, {17, 17}, {100, 100}});
  encoder.attention.type = AttentionType::kEncoderOnly;
  encoder.attention.causal = false;
  check_passes(encoder, "FLASH_ATTN");
}

TEST_CASE("where outputs do not depend on signs, the one that is repeated is judged as well") {
  // A single key has the weight 1, whatever the query is.
  const Result result =
      samples_of(problem_of({{1, 1}, {1, 1}}), "FLASH_ATTN", [](SampleSide&, int) {});
  CHECK(result.status == Status::kPassed);
}

namespace {

/// A device that has memory for so many pieces.
class LimitedMemory final : public SampleMemory {
 public:
  explicit LimitedMemory(int pieces) : pieces_(pieces) {}
  void* allocate(std::size_t size_bytes) override {
    if (pieces_-- == 0) fail(ErrorKind::kCapacity, "no memory");
    return memory_->allocate(size_bytes);
  }
  void fill(void* memory, unsigned char byte, std::size_t size_bytes) override {
    memory_->fill(memory, byte, size_bytes);
  }
  void copy(void* target, const void* source, std::size_t size_bytes) override {
    memory_->copy(target, source, size_bytes);
  }
  void table(const std::vector<attn::BlockMove>& moves) override { memory_->table(moves); }
  void move(std::size_t first, std::size_t count) override { memory_->move(first, count); }
  void redraw(int element_bytes, const attn::RedrawParams& params) override {
    memory_->redraw(element_bytes, params);
  }
  void show() override { memory_->show(); }
  void clear_sums() override { memory_->clear_sums(); }
  void digest(attn::DigestParams params) override { memory_->digest(params); }
  attn::SampleDigest sums() override { return memory_->sums(); }

 private:
  int pieces_;
  std::unique_ptr<SampleMemory> memory_ = make_cpu_sample_memory();
};

/// The samples of 30 that are kept for the judge, with memory for these pieces.
std::vector<TimedSample> kept_of_thirty(const Problem& problem, int pieces) {
  const std::unique_ptr<Case> own = make_case(problem, {1, {}});
  const std::unique_ptr<CaseRun> run = own->start(*find_backend("FLASH_ATTN"));
  const std::unique_ptr<Ops> ops = make_cpu_ops(1);
  const std::unique_ptr<Pipeline> pipeline = run->prepare(*ops);
  for (const Step& step : pipeline->steps()) step.run();
  SampleChecks checks(*pipeline, *pipeline->sample_side(), std::make_unique<LimitedMemory>(pieces),
                      1 << 20, true);
  for (std::int64_t sample = 0; sample < 30; ++sample) {
    checks.poison();
    checks.rewrite();
    checks.restore();
    for (const Step& step : pipeline->steps()) step.run();
    checks.keep();
    checks.finish(sample);
  }
  checks.end();
  std::vector<TimedSample> taken = checks.take_samples();
  for (const TimedSample& one : taken) {
    const auto finding = judge_timed_sample(*run, one.number, one.nonce, one.output);
    CHECK(finding->reason == "");
  }
  return taken;
}

}  // namespace

TEST_CASE("eight of many samples are judged, fewer where memory is short") {
  const Problem problem = problem_of(kMixed);
  const SampleSide side = [&] {
    const std::unique_ptr<Case> own = make_case(problem, {1, {}});
    const std::unique_ptr<CaseRun> run = own->start(*find_backend("FLASH_ATTN"));
    const std::unique_ptr<Ops> ops = make_cpu_ops(1);
    return *run->prepare(*ops)->sample_side();
  }();
  const auto outputs = static_cast<int>(side.outputs.size());
  // The query, the blocks that change and what they are filled with, then the latest output.
  const int before = static_cast<int>(side.query.size() + side.planes.size()) + 1 + outputs;
  CHECK(kept_of_thirty(problem, before + 100).size() == 8);
  CHECK(kept_of_thirty(problem, before + 8 * outputs).size() == 8);
  CHECK(kept_of_thirty(problem, before + 7 * outputs).size() == 7);
  CHECK(kept_of_thirty(problem, before + 3 * outputs).size() == 3);
  CHECK_THROWS_AS(kept_of_thirty(problem, before + 2 * outputs), Error);
  // Any of them may be judged.
  bool is_late = false, is_early = false;
  for (int run = 0; run < 20; ++run) {
    const std::vector<TimedSample> taken = kept_of_thirty(problem, before + 7 * outputs);
    is_early = is_early || taken.front().number < 7;
    is_late = is_late || taken.back().number >= 20;
  }
  CHECK(is_early);
  CHECK(is_late);
}

TEST_CASE("a run that does nothing leaves the poison of its sample") {
  const std::string reason = reason_of(problem_of(kMixed), [](SampleSide& side, int run) {
    const SampleSide::Output& output = side.outputs.front();
    if (run >= 6) std::memset(output.memory, 0xFF, static_cast<std::size_t>(output.bytes));
  });
  CHECK(begins_with(reason, "timed sample 2: "));
  CHECK(reason.find("were not there when its time ended") != std::string::npos);
}

TEST_CASE("an output that is kept is wrong for the next inputs") {
  auto kept = std::make_shared<std::vector<std::byte>>();
  const std::string reason = reason_of(problem_of(kMixed), [kept](SampleSide& side, int run) {
    const SampleSide::Output& output = side.outputs.front();
    auto* bytes = static_cast<std::byte*>(output.memory);
    if (run == 0) kept->assign(bytes, bytes + output.bytes);
    if (run > 3) std::memcpy(bytes, kept->data(), kept->size());
  });
  CHECK(begins_with(reason, "timed sample "));
}

TEST_CASE("requests that are left out are wrong, however long they are") {
  Problem problem = problem_of(std::vector<Request>(10, {1, 33'000}));
  problem.attention.num_heads = 8;
  problem.attention.head_size = problem.attention.v_head_size = 8;
  for (const std::size_t left_out : {std::size_t{1}, std::size_t{3}}) {
    auto kept = std::make_shared<std::vector<std::byte>>();
    const std::string reason = reason_of(problem, [=](SampleSide& side, int run) {
      const SampleSide::Output& output = side.outputs.front();
      auto* bytes = static_cast<std::byte*>(output.memory);
      constexpr std::size_t kRowBytes = 8 * 8 * sizeof(std::uint16_t);
      const std::size_t first = (10 - left_out) * kRowBytes;
      if (run == 0) kept->assign(bytes, bytes + output.bytes);
      if (run > 3) std::memcpy(bytes + first, kept->data() + first, left_out * kRowBytes);
    });
    CHECK(begins_with(reason, "timed sample "));
  }
}

TEST_CASE("an output of NaN is said to be one") {
  const std::string reason = reason_of(problem_of(kMixed), [](SampleSide& side, int run) {
    auto* elements = static_cast<std::uint16_t*>(side.outputs.front().memory);
    if (run >= 4) elements[5] = 0x7FC0;
  });
  CHECK(begins_with(reason, "timed sample 0: 1"));
  CHECK(reason.find("NaN") != std::string::npos);
}

TEST_CASE("inputs are poison until the time begins") {
  const Problem problem = problem_of(kMixed);
  const Backend& backend = *find_backend("FLASH_ATTN");
  const std::unique_ptr<Case> own = make_case(problem, {1, {}});
  const std::unique_ptr<CaseRun> run = own->start(backend);
  const std::unique_ptr<Ops> ops = make_cpu_ops(1);
  const std::unique_ptr<Pipeline> pipeline = run->prepare(*ops);
  for (const Step& step : pipeline->steps()) step.run();
  const SampleSide side = *pipeline->sample_side();
  SampleChecks checks(*pipeline, side, make_cpu_sample_memory(), 1 << 20, true);
  const auto* query = static_cast<const unsigned char*>(side.query.front().memory);
  const auto query_bytes =
      static_cast<std::size_t>(side.query.front().rows * side.query.front().row_elements * 2);
  const std::vector<unsigned char> before(query, query + query_bytes);
  checks.poison();
  CHECK(std::vector<unsigned char>(query, query + query_bytes) ==
        std::vector<unsigned char>(query_bytes, 0xFF));
  const auto* output = static_cast<const unsigned char*>(side.outputs.front().memory);
  CHECK(output[0] == 0xFF);
  checks.rewrite();
  CHECK(query[0] == 0xFF);
  checks.restore();
  CHECK(std::vector<unsigned char>(query, query + query_bytes) != before);
  checks.end();
  CHECK(std::vector<unsigned char>(query, query + query_bytes) == before);
}

}  // namespace attnbench
