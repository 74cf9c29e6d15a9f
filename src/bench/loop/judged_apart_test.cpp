#include <doctest/doctest.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cmath>
#include <cstdio>
#include <functional>
#include <string>
#include <utility>
#include <vector>

#include "bench/bench.h"
#include "bench/loop/fake_backend.h"
#include "bench/process/frames.h"
#include "bench/trial/output_parcel.h"
#include "bench/trial/remote_judge.h"
#include "core/error.h"
#include "core/result/write_json.h"

namespace attnbench::judged_apart_test {
namespace {

class Silent final : public BenchObserver {
 public:
  void job_started(std::size_t, std::size_t, const Job&) override {}
  void phase(Phase) override {}
  void job_finished(const Result&) override {}
};

/// Every socket that the process has.
std::vector<int> sockets() {
  std::vector<int> found;
  for (int fd = 3; fd < 256; ++fd) {
    struct stat status {};
    if (fstat(fd, &status) == 0 && S_ISSOCK(status.st_mode)) found.push_back(fd);
  }
  return found;
}

void shout(char kind, const std::string& text) {
  for (const int socket : sockets()) send_message(socket, kind, text);
}

/// A user's backend that is judged by this process, beside one of this program; it may be hostile.
struct Apart {
  Problem problem = small_problem();
  FakeBackend users, native;
  BenchOptions options;
  Silent silent;

  Apart() {
    users.backend_name = "MINE";
    users.library = PluginInfo{"libmine.so", "1", "abc"};
    options.timing = true;
    options.num_threads = 1;
    options.isolate = true;
    options.hang_limit_s = 20;
    options.sample_checks = SampleChecking::kNone;  // the fake's inputs are not drawn anew
  }
  std::vector<Job> jobs() const {
    return {{&problem, &users, "suite/q4/MINE", "", {}},
            {&problem, &native, "suite/q4/FLASH_ATTN", "", {}}};
  }
  Result run() {
    const std::vector<Result> results = run_jobs(jobs(), options, silent);
    REQUIRE(results.size() == 2);
    CHECK(results[1].status == Status::kPassed);
    for (const std::string& reason : results[0].reasons) MESSAGE(reason);
    return results[0];
  }
  /// What the child would have to say for the result that it wants.
  std::string passed() const {
    Result result = describe_job(jobs().front(), options);
    result.status = Status::kPassed;
    result.error = ErrorStats{};
    result.error->checked_rows = result.error->total_rows = 4;
    result.timing = Timing{};
    result.timing->samples_us = {0.001, 0.001};
    result.timing->median_us = 0.001;
    return result_to_json(result);
  }
};

void spoil(PipelineOutput& output) {
  for (std::int64_t i = 0; i < output.output.num_elements(); ++i) output.output.set(i, 0.25f);
}

bool mentions(const Result& result, const std::string& text) {
  for (const std::string& reason : result.reasons) {
    if (reason.find(text) != std::string::npos) return true;
  }
  return false;
}

}  // namespace

TEST_CASE("a user's job that is judged apart has the result of one that is judged where it runs") {
  Apart apart;
  const Result result = apart.run();
  CHECK(result.status == Status::kPassed);
  apart.options.isolate = false;
  const Result local = run_jobs({apart.jobs().front()}, apart.options, apart.silent).front();
  CHECK(local.status == Status::kPassed);
  REQUIRE((result.error && local.error && result.lse_error && result.timing && result.throughput));
  CHECK(result.error->max_abs == local.error->max_abs);
  CHECK(result.lse_error->max_abs == local.lse_error->max_abs);
  CHECK(result.error->checked_rows == local.error->checked_rows);
  CHECK(result.timing->samples_us.size() == 2);
  CHECK(result.throughput->ceiling_gbps > 0);
  REQUIRE(result.plugin);
  CHECK(result.plugin->sha256 == "abc");
}

TEST_CASE("a user's job that hands no timed sample in has no result") {
  Apart apart;
  apart.options.sample_checks = SampleChecking::kAll;
  const Result result = apart.run();
  CHECK(result.status == Status::kError);
  CHECK(mentions(result, "the output of run 'timed' was not handed in"));
  CHECK_FALSE(result.timing);
}

TEST_CASE("backends that take turns are judged apart, too, and know their peers") {
  Apart apart;
  apart.problem.timing.order = TimingOrder::kAlternate;
  const Result result = apart.run();
  CHECK(result.status == Status::kPassed);
  REQUIRE(result.timing);
  CHECK(result.timing->peers == std::vector<std::string>{"MINE", "FLASH_ATTN"});
}

TEST_CASE("what is wrong is found apart: the output, the cache, a run that differs, a stale one") {
  Apart apart;
  apart.users.fault = [](PipelineOutput& output, int) { spoil(output); };
  Result result = apart.run();
  CHECK(result.status == Status::kIncorrect);
  CHECK(mentions(result, "a run with the query negated gave the same output"));
  CHECK_FALSE(result.timing);
  apart.users.fault = [](PipelineOutput& output, int) { output.cache->bytes()[3] ^= std::byte{1}; };
  CHECK(mentions(apart.run(), "cache write: "));
  apart.users.fault = [](PipelineOutput& output, int run) {
    if (run == 2) output.lse->set(1, std::nextafter(output.lse->at(1), 100.0f));
  };
  CHECK(mentions(apart.run(), "not deterministic: lse[0, 1]"));
  apart.users.fault = [](PipelineOutput& output, int run) {
    if (run >= 3) spoil(output);
  };
  CHECK(mentions(apart.run(), "remembers earlier values: "));
}

TEST_CASE("a forged result is no result, whether its process goes on or leaves") {
  Apart apart;
  const std::string forged = apart.passed();
  apart.users.fault = [&](PipelineOutput&, int) {
    shout('R', forged);
    _exit(0);
  };
  Result result = apart.run();
  CHECK(result.status == Status::kError);
  CHECK_FALSE(result.timing);
  CHECK(mentions(result, "before everything was handed in"));
  apart.users.fault = [&](PipelineOutput& output, int run) {
    spoil(output);
    if (run == 2) shout('R', forged);
  };
  CHECK(apart.run().status == Status::kError);
}

TEST_CASE("the status that the judge gave is not asked for twice") {
  Apart apart;
  apart.users.fault = [](PipelineOutput& output, int run) {
    spoil(output);
    if (run == 1) shout(judge_message::kFinish, "");
  };
  const Result result = apart.run();
  CHECK(result.status == Status::kError);
  CHECK(mentions(result, "before it was through"));
}

TEST_CASE("a process that leaves early, having said that all is well, is an error") {
  Apart apart;
  apart.users.fault = [](PipelineOutput&, int) {
    std::puts("passed");
    _exit(0);
  };
  const Result result = apart.run();
  CHECK(result.status == Status::kError);
  CHECK(mentions(result, "the process that ran this case ended in phase 'run'"));
}

TEST_CASE("what is written over in the process of the backend is not what it is judged by") {
  Apart apart;
  // The rules, the inputs that a reference there would be made of, and the options of the judge.
  apart.users.fault = [&](PipelineOutput& output, int) {
    apart.problem.attention.scale = 0;
    apart.users.rules = {};
    spoil(output);
  };
  const Result result = apart.run();
  CHECK(result.status == Status::kIncorrect);
  REQUIRE(result.error);
  CHECK(result.error->max_abs > 0.01);
}

TEST_CASE("checks that the process of the backend does not run are missed") {
  Apart apart;
  apart.users.fault = [&](PipelineOutput&, int) { apart.options.validate = false; };
  Result result = apart.run();
  CHECK(result.status == Status::kError);
  CHECK(mentions(result, "the stages of a job were handed in in the wrong order"));
  apart.users.fault = [&](PipelineOutput&, int) { apart.users.library.reset(); };
  result = apart.run();
  CHECK(result.status == Status::kError);
  CHECK(mentions(result, "run 'negated' was not handed in"));
}

TEST_CASE("messages without sense end their job and no other") {
  const std::string bytes("\xff\xff\xff\xff\xff\xff\xff\xff\xff", 9);
  for (const auto& [kind, text] :
       std::vector<std::pair<char, std::string>>{{'S', "1000000"},
                                                 {'S', "x"},
                                                 {'T', ""},
                                                 {'P', bytes},
                                                 {'R', "{}"},
                                                 {'R', bytes},
                                                 {'?', bytes},
                                                 {judge_message::kSubmit, bytes},
                                                 {judge_message::kTimed, "{}"},
                                                 {judge_message::kDecide, bytes}}) {
    Apart apart;
    apart.options.timing = false;
    apart.users.fault = [&](PipelineOutput&, int) { shout(kind, text); };
    CHECK(apart.run().status == Status::kError);
  }
}

TEST_CASE("an output arrives as it was, its file is emptied, and sizes are not believed") {
  PipelineOutput output;
  output.output = Tensor::from_f32(std::vector<float>{1, 2, 3, 4}, {2, 2});
  output.cache = Tensor(Dtype::kU8, {3'000'001});
  output.cache->bytes()[3'000'000] = std::byte{7};
  output.declared_lse = LseConvention{true, false};
  output.more.emplace_back("rank_lse", Tensor::from_f32(std::vector<float>{5}, {1}));
  output.defect = "a defect";
  const Parcel parcel = pack({RunKind::kTimed, {true, 77}, 5, "words"}, std::move(output));
  std::string longer = parcel.text;
  longer += '\0';
  CHECK_THROWS_AS(unpack(longer, parcel.file), Error);
  CHECK_THROWS_AS(unpack(parcel.text.substr(0, parcel.text.size() - 1), parcel.file), Error);
  CHECK_THROWS_AS(unpack(parcel.text, Descriptor()), Error);
  const Parcel again = pack({RunKind::kTimed, {true, 77}, 5, "words"}, [] {
    PipelineOutput same;
    same.output = Tensor::from_f32(std::vector<float>{1, 2, 3, 4}, {2, 2});
    same.cache = Tensor(Dtype::kU8, {3'000'001});
    same.cache->bytes()[3'000'000] = std::byte{7};
    same.declared_lse = LseConvention{true, false};
    same.more.emplace_back("rank_lse", Tensor::from_f32(std::vector<float>{5}, {1}));
    same.defect = "a defect";
    return same;
  }());
  const Unpacked arrived = unpack(again.text, again.file);
  CHECK(arrived.what.run == RunKind::kTimed);
  CHECK(arrived.what.draw == Draw{true, 77});
  CHECK(arrived.what.index == 5);
  CHECK(arrived.what.words == "words");
  CHECK(arrived.output.output.shape() == std::vector<std::int64_t>{2, 2});
  CHECK(arrived.output.output.at(3) == 4);
  CHECK_FALSE(arrived.output.lse);
  REQUIRE(arrived.output.cache);
  CHECK(arrived.output.cache->bytes()[3'000'000] == std::byte{7});
  REQUIRE(arrived.output.declared_lse);
  CHECK(arrived.output.declared_lse->base_two);
  REQUIRE(arrived.output.more.size() == 1);
  CHECK(arrived.output.more[0].first == "rank_lse");
  CHECK(arrived.output.defect == "a defect");
  struct stat status {};
  REQUIRE(fstat(again.file.get(), &status) == 0);
  CHECK(status.st_blocks * 512 < 100'000);
  REQUIRE(ftruncate(again.file.get(), 10) == 0);
  CHECK_THROWS_AS(unpack(again.text, again.file), Error);
}

TEST_CASE("tensors that belong together are handed in together, in their types and shapes") {
  Problem problem;
  problem.attention.type = AttentionType::kMla;
  problem.attention.dtype = Dtype::kBF16;
  problem.attention.num_heads = 2;
  problem.attention.v_head_size = 4;
  problem.mla.kv_lora_rank = 8;
  problem.output_quant.type = OutputQuantType::kFp8Static;
  problem.batch = {{1, 8}, {3, 9}};
  problem.dcp.world_size = 2;
  const auto said = [&](const std::function<void(PipelineOutput&)>& change,
                        RunKind run = RunKind::kJudged) -> std::string {
    PipelineOutput output;
    output.output = Tensor(Dtype::kE4M3, {4, 2, 4});
    output.more.emplace_back("output_unquantized", Tensor(Dtype::kBF16, {4, 2, 4}));
    output.more.emplace_back("output_scales", Tensor(Dtype::kF32, {1}));
    output.more.emplace_back("rank_output", Tensor(Dtype::kF32, {2, 1, 2, 8}));
    output.more.emplace_back("rank_lse", Tensor(Dtype::kF32, {2, 2, 1}));
    change(output);
    try {
      check_form(problem, run, output);
    } catch (const Error& error) {
      return error.what();
    }
    return "";
  };
  const auto without = [](const char* name) {
    return [name](PipelineOutput& output) {
      std::erase_if(output.more, [&](const auto& entry) { return entry.first == name; });
    };
  };
  const auto as = [](const char* name, const Tensor& tensor) {
    return [name, tensor](PipelineOutput& output) {
      for (auto& [known, more] : output.more) {
        if (known == name) more = tensor;
      }
    };
  };
  const std::string other = " was handed in with another type or shape than it has";
  CHECK(said([](PipelineOutput&) {}) == "");
  CHECK(said(without("output_scales")) == "output_scales was not handed in");
  CHECK(said(without("output_unquantized")) == "output_unquantized was not handed in");
  CHECK(said(without("rank_lse")) == "rank_lse was not handed in");
  CHECK(said(as("output_scales", Tensor(Dtype::kF32, {2}))) == "output_scales" + other);
  CHECK(said(as("output_unquantized", Tensor(Dtype::kBF16, {4, 4, 2}))) ==
        "output_unquantized" + other);
  CHECK(said(as("rank_output", Tensor(Dtype::kF32, {2, 5, 2, 8}))) == "rank_output" + other);
  CHECK(said(as("rank_output", Tensor(Dtype::kF32, {2, 1}))) == "rank_output" + other);
  CHECK(said(as("rank_lse", Tensor(Dtype::kF32, {2, 1, 2}))) == "rank_lse" + other);
  const auto other_codes = [](PipelineOutput& output) {
    output.output = Tensor(Dtype::kE4M3, {4, 8});
  };
  CHECK(said(other_codes) == "output" + other);
  CHECK(said(other_codes, RunKind::kAlone) == "");  // whoever compares its rows counts them
}

TEST_CASE("a tensor that is larger than its file costs no memory before it is refused") {
  const auto refused = [](std::vector<std::int64_t> shape) {
    ParcelWriter writer;
    writer.number(static_cast<std::uint32_t>(Dtype::kF32));
    writer.number(static_cast<std::uint32_t>(shape.size()));
    for (const std::int64_t extent : shape) writer.number(extent);
    const Parcel parcel = writer.take();
    ParcelReader reader(parcel.text, parcel.file);
    try {
      reader.tensor();
    } catch (const Error& error) {
      return error.kind() == ErrorKind::kInternal;
    } catch (const std::bad_alloc&) {
      return false;
    }
    return false;
  };
  CHECK(refused({std::int64_t{1} << 50}));
  CHECK(refused({std::int64_t{1} << 40, std::int64_t{1} << 40}));
  CHECK(refused({-1}));
  CHECK(refused({4}));
}

}  // namespace attnbench::judged_apart_test
