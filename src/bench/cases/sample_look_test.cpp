// Timed samples of small cases, with the device's screening on emulated threads.
#include "bench/cases/sample_look.h"

#include <doctest/doctest.h>

#include <cmath>
#include <limits>
#include <memory>
#include <string>
#include <utility>

#include "backends/backend.h"
#include "bench/cases/case.h"
#include "bench/cases/emulated_row_screen_testing.h"
#include "bench/loop/sample_checks.h"
#include "core/error.h"
#include "core/system/clock.h"
#include "measure/measure.h"
#include "metadata/int_math.h"
#include "ops/ops.h"

namespace attnbench::sample_look_test {
namespace {

/// Decodes and prompts, of which few rows are looked at by the reference: 46 rows.
Problem example_problem() {
  Problem problem;
  problem.attention.num_heads = 2;
  problem.attention.num_kv_heads = 1;
  problem.attention.head_size = problem.attention.v_head_size = 32;
  problem.attention.scale = 1 / std::sqrt(32.0);
  problem.batch = {{1, 60}, {1, 90}, {0, 20}, {4, 70}, {40, 75}};
  problem.kv_cache.num_blocks = 40;
  problem.timing.samples = 2;
  problem.timing.l2 = L2Mode::kWarm;
  return problem;
}

Problem latent_problem() { return as_latents(example_problem()); }

Problem encoder_problem() {
  Problem problem = example_problem();
  problem.attention.type = AttentionType::kMmEncoder;
  problem.attention.causal = false;
  problem.attention.num_kv_heads = 2;
  problem.batch = {{40, 40}, {70, 70}};
  return problem;
}

/// The samples of a backend at a case, which are right.
struct Samples {
  Problem problem;
  std::unique_ptr<Case> the_case;
  std::unique_ptr<Ops> ops = make_cpu_ops(1);
  std::unique_ptr<CaseRun> case_run;
  std::unique_ptr<Pipeline> pipeline;
  std::vector<TimedSample> taken;

  Samples(Problem of, const JudgeTools& tools, const char* backend = "FLASH_ATTN")
      : problem(std::move(of)) {
    the_case = make_case(problem, {1, {}}, tools);
    the_case->notices();
    REQUIRE(find_backend(backend)->refusals(problem, {}).empty());
    case_run = the_case->start(*find_backend(backend));
    pipeline = case_run->prepare(*ops);
    pipeline->poison_outputs();
    for (const Step& step : pipeline->steps()) step.run();
    SampleChecks checks(*pipeline, *pipeline->sample_side(), make_cpu_sample_memory(), 1 << 20,
                        true);
    ClockStopwatch stopwatch(steady_clock());
    measure(pipeline->steps(), stopwatch, nullptr, steady_clock(),
            {problem.timing, {}, 1, &checks});
    REQUIRE(checks.problem() == "");
    taken = checks.take_samples();
    REQUIRE(taken.size() == 2);
  }
  SampleVerdict judge(std::size_t i = 0) {
    return *case_run->judge_sample(taken[i].output, taken[i].nonce);
  }
  /// A head of a row of the first sample.
  void fill(std::int64_t row, std::int64_t head, float value) {
    Tensor& output = taken[0].output.output;
    const std::int64_t width = output.dim(2);
    for (std::int64_t i = 0; i < width; ++i) {
      output.set((row * output.dim(1) + head) * width + i, value);
    }
  }
};

JudgeTools with_device(bool spoil = false) {
  JudgeTools tools;
  tools.draw_seed = [] { return std::uint64_t{5}; };
  tools.make_screen = [spoil] { return std::make_unique<EmulatedRowScreen>(spoil); };
  return tools;
}

/// A device without memory.
class FullScreen final : public RowScreen {
 public:
  ScreenTable compare(const AttentionMath&, const ReferenceInputs&,
                      const ScreenedOutput&) override {
    return refuse();
  }
  ScreenTable compare_latent(const MlaReferenceInputs&, const ScreenedOutput&) override {
    return refuse();
  }
  ScreenTable compare_listed(const AttentionMath&, const ReferenceInputs&,
                             std::span<const std::int32_t>, const ScreenedOutput&) override {
    return refuse();
  }
  ScreenTable compare_latent_rank(const MlaReferenceInputs&, const DcpGroup&, int,
                                  const ScreenedOutput&) override {
    return refuse();
  }
  ScreenTable compare_part(const AttentionMath&, const ReferenceInputs&, const ScreenedPart&,
                           const ScreenedOutput&) override {
    return refuse();
  }
  ScreenTable compare_latent_part(const MlaReferenceInputs&, const ScreenedPart&,
                                  const ScreenedOutput&) override {
    return refuse();
  }
  void release() override {}

 private:
  static ScreenTable refuse() { fail(ErrorKind::kCapacity, "no memory"); }
};

struct Form {
  const char* name;
  const char* backend;
  Problem problem;
};

std::vector<Form> forms() {
  std::vector<Form> forms;
  forms.push_back({"decodes and prompts", "FLASH_ATTN", example_problem()});
  forms.push_back({"an fp8 cache and query", "FLASH_ATTN", example_problem()});
  forms.back().problem.kv_cache.dtype = KvCacheDtype::kFp8E4M3;
  forms.push_back({"codes with scales of their own", "TRITON_ATTN", example_problem()});
  forms.back().problem.kv_cache.dtype = KvCacheDtype::kInt8PerTokenHead;
  forms.push_back({"a window", "FLASH_ATTN", example_problem()});
  forms.back().problem.attention.sliding_window = 20;
  forms.push_back({"a shared prefix", "FLASH_ATTN", example_problem()});
  forms.back().problem.batch = {{1, 100}, {1, 90}, {30, 80}};
  forms.back().problem.cascade.common_prefix_len = 48;
  forms.back().problem.cascade.mode = CascadeMode::kAlways;
  forms.push_back({"ranks", "FLASH_ATTN", example_problem()});
  forms.back().problem.dcp.world_size = 2;
  forms.push_back({"keys without a cache", "FLASH_ATTN", example_problem()});
  forms.back().problem.attention.type = AttentionType::kEncoderOnly;
  forms.back().problem.attention.causal = false;
  forms.back().problem.batch = {{40, 40}, {70, 70}};
  forms.push_back({"latents", "MLA", latent_problem()});
  forms.push_back({"latents of an fp8 cache", "MLA", latent_problem()});
  forms.back().problem.kv_cache.dtype = KvCacheDtype::kFp8E4M3;
  forms.push_back({"images", "MM_TORCH_SDPA", encoder_problem()});
  return forms;
}

}  // namespace

TEST_CASE("right samples pass with every row and head seen") {
  for (const Form& form : forms()) {
    CAPTURE(form.name);
    Samples samples(form.problem, with_device(), form.backend);
    for (std::size_t i = 0; i < 2; ++i) {
      const SampleVerdict verdict = samples.judge(i);
      CHECK(verdict.is_judged);
      CHECK(verdict.judgement.reasons == std::vector<std::string>{});
      CHECK(verdict.screened_rows == form.problem.num_tokens());
    }
    // Of inputs that were another sample's nothing is left on the device.
    std::swap(samples.taken[0].output, samples.taken[1].output);
    CHECK_FALSE(samples.judge(0).judgement.reasons.empty());
  }
}

TEST_CASE("a head of any row of a sample that is wrong is found") {
  for (const Form& form : forms()) {
    CAPTURE(form.name);
    Samples samples(form.problem, with_device(), form.backend);
    const PipelineOutput right = samples.taken[0].output;
    for (const std::int64_t row :
         {std::int64_t{0}, form.problem.num_tokens() / 2, form.problem.num_tokens() - 1}) {
      for (const std::int64_t head : {0, 1}) {
        CAPTURE(row);
        samples.fill(row, head, row == 0 ? std::numeric_limits<float>::quiet_NaN() : 0);
        const SampleVerdict verdict = samples.judge();
        REQUIRE_FALSE(verdict.judgement.reasons.empty());
        CHECK(verdict.judgement.reasons[0].find("output of request 0") == 0);
        samples.taken[0].output = right;
      }
    }
  }
}

TEST_CASE("what is wrong in one row and head is missed by chance without a device") {
  Samples samples(example_problem(), JudgeTools{});
  CHECK(samples.judge().screened_rows == 0);
  samples.fill(30, 1, 0);
  int seen = 0;
  for (int i = 0; i < 40; ++i) seen += samples.judge().judgement.reasons.empty() ? 0 : 1;
  CHECK(seen > 0);
  CHECK(seen < 40);
}

TEST_CASE("an LSE of a sample that is wrong is found") {
  Samples samples(example_problem(), with_device());
  REQUIRE(samples.taken[0].output.lse);
  Tensor& lse = *samples.taken[0].output.lse;
  lse.set(lse.dim(1) + 30, lse.at(lse.dim(1) + 30) + 1);
  CHECK_FALSE(samples.judge().judgement.reasons.empty());
}

TEST_CASE("a screening of samples that disagrees with the reference is an error of this program") {
  Samples samples(example_problem(), with_device(/*spoil=*/true));
  try {
    samples.judge();
    FAIL("nothing was thrown");
  } catch (const Error& error) {
    CHECK(error.kind() == ErrorKind::kInternal);
    CHECK(std::string(error.what()).find("screening disagrees with the reference: row ") == 0);
  }
}

TEST_CASE("samples that the device has no memory for are left to the reference") {
  JudgeTools tools;
  int opened = 0;
  tools.make_screen = [&] {
    ++opened;
    return std::make_unique<FullScreen>();
  };
  Samples samples(example_problem(), tools);
  for (std::size_t i = 0; i < 2; ++i) {
    const SampleVerdict verdict = samples.judge(i);
    CHECK(verdict.judgement.reasons.empty());
    CHECK(verdict.screened_rows == 0);
  }
  CHECK(opened == 1);
}

TEST_CASE("where the reference sees all of a sample no device is opened") {
  Problem problem = example_problem();
  problem.batch = {{1, 60}, {1, 90}, {1, 30}};
  JudgeTools tools;
  tools.make_screen = []() -> std::unique_ptr<RowScreen> {
    FAIL("opened");
    return nullptr;
  };
  Samples samples(problem, tools);
  CHECK(samples.judge().judgement.reasons.empty());
}

TEST_CASE("a sample of a batch without new tokens has nothing to judge") {
  Problem problem = example_problem();
  problem.batch = {{0, 0}, {0, 20}};
  int judged = 0;
  const std::optional<SampleVerdict> verdict = judge_requests(
      SampleDraw(problem, 1).next(), {}, [&](const JudgedRequest&, const ReferenceOptions&) {
        ++judged;
        return std::optional<Judgement>();
      });
  REQUIRE(verdict.has_value());
  CHECK_FALSE(verdict->is_judged);
  CHECK(judged == 0);
}

TEST_CASE("the table of a request has its rows and heads") {
  ScreenTable batch;
  batch.is_float64 = true;
  batch.rows = {1, 4, 5, 9};
  batch.num_heads = 3;
  for (int i = 0; i < 12; ++i) batch.of.push_back({static_cast<double>(i), 0, 0, 0, 0, 0});
  const ScreenTable some = table_of_request(batch, {1, 4, 4, {0, 1, 2}, {0, 2}});
  CHECK(some.rows == std::vector<std::int32_t>{0, 1});
  CHECK(some.num_heads == 2);
  REQUIRE(some.of.size() == 4);
  CHECK(some.at(1, 1).error == 8);
  CHECK(table_of_request(batch, {2, 9, 1, {0}, {}}).of.size() == 3);
  CHECK(table_of_request({}, {2, 9, 1, {0}, {}}).rows.empty());
}

}  // namespace attnbench::sample_look_test
