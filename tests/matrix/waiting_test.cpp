// Pipelines queue their work and never wait for it: behind a closed gate a wait would hold up every
// sample, and in a captured stream it is an error. The edge-case matrix and the differential tests
// look at it too; here are the encoder's pipelines with scales of every origin.
#include <doctest/doctest.h>

#include <atomic>
#include <filesystem>

#include "bench/cases/case.h"
#include "core/test_folder.h"
#include "gpu/host_runtime_testing.h"
#include "inputs/files/encoder_scale_file.h"
#include "inputs/mm_problem_testing.h"
#include "jit/fake_compiler_testing.h"
#include "measure/cuda_measure.h"
#include "mla_products_testing.h"
#include "ops/cuda/cuda_ops.h"
#include "ops/cuda/testing/column_major_testing.h"
#include "run_case.h"
#include "waiting_ops.h"

namespace attnbench::matrix {
namespace {

void expect_pass(const Problem& problem, const char* backend) {
  CAPTURE(backend);
  CAPTURE(problem.attention.head_size);
  const std::unique_ptr<Ops> cpu = make_cpu_ops(1);
  const CaseResult result = run_case(problem, *find_backend(backend), *cpu);
  CHECK_MESSAGE(result.outcome == Outcome::kPassed, result.text());
}

/// A pipeline of one step.
class OneStep final : public Pipeline {
 public:
  explicit OneStep(std::function<void()> run) : steps_{{"work", true, 0, 0, std::move(run)}} {}
  const std::vector<Step>& steps() const override { return steps_; }
  void poison_outputs() override {}
  PipelineOutput read_output(bool) override { return {}; }

 private:
  std::vector<Step> steps_;
};

/// Host memory that refuses in a captured stream what CUDA refuses there.
class StrictRuntime final : public HostRuntime {
 public:
  StrictRuntime() {
    driver_functions["cuTensorMapEncodeTiled"] = reinterpret_cast<void*>(&play_tensor_map_encode);
  }
  void* allocate(std::size_t size_bytes) override {
    refuse("allocate");
    return HostRuntime::allocate(size_bytes);
  }
  void copy_to_device(void* destination, const void* source, std::size_t size_bytes,
                      StreamHandle stream) override {
    refuse("copy_to_device");
    HostRuntime::copy_to_device(destination, source, size_bytes, stream);
  }
  void copy_to_host(void* destination, const void* source, std::size_t size_bytes,
                    StreamHandle stream) override {
    refuse("copy_to_host");
    HostRuntime::copy_to_host(destination, source, size_bytes, stream);
  }
  void synchronize(StreamHandle) override { refuse("synchronize"); }
  void begin_capture(StreamHandle) override { capturing_ = true; }
  GraphHandle end_capture(StreamHandle) override {
    capturing_ = false;
    return nullptr;
  }

 private:
  void refuse(const std::string& call) const {
    if (capturing_) throw DeviceError(call + " in a captured stream", false);
  }
  bool capturing_ = false;
};

struct Device {
  TestFolder cache;
  std::atomic<int> compilations{0};
  StrictRuntime* runtime = nullptr;
  std::unique_ptr<CudaOps> ops;

  explicit Device(CublasLtOpener open_library = nullptr) {
    auto strict = std::make_unique<StrictRuntime>();
    runtime = strict.get();
    ops = std::make_unique<CudaOps>(
        std::move(strict),
        std::make_unique<KernelStore>(std::make_unique<FakeCompiler>(compilations),
                                      DiskCache(cache.path()), embedded_kernel_files()),
        std::move(open_library));
  }

  /// Captures each of `works` as a graph; how many kernels that launched.
  std::size_t capture(const Part& works) {
    std::vector<Part> parts;
    for (const auto& work : works) parts.push_back({work});
    const std::size_t before = runtime->launches.size();
    make_cuda_stopwatch(*runtime, ops->stream(), steady_clock(), TimingMode::kGraph)
        ->prepare(parts);
    return runtime->launches.size() - before;
  }
};

void expect_captured(const Problem& problem, const char* backend) {
  CAPTURE(backend);
  CAPTURE(problem.attention.head_size);
  Device device;
  const std::unique_ptr<Case> the_case = make_case(problem, {});
  const std::unique_ptr<CaseRun> case_run = the_case->start(*find_backend(backend));
  const std::unique_ptr<Pipeline> pipeline = case_run->prepare(*device.ops);
  Part works;
  for (const Step& step : pipeline->steps()) {
    step.run();  // as the check before timing: kernels are loaded
    works.push_back(step.run);
  }
  CHECK_NOTHROW(CHECK(device.capture(works) >= works.size()));
}

}  // namespace

TEST_CASE("a step that lets the host wait is named with what it asked for") {
  const std::unique_ptr<Ops> cpu = make_cpu_ops(1);
  float value = 1;
  const std::vector<std::pair<std::string, std::function<void(Ops&, Buffer&)>>> calls{
      {"", [](Ops&, Buffer&) {}},
      {"work: allocate more", [](Ops& o, Buffer&) { o.allocate(4, "more"); }},
      {"work: upload", [&](Ops& o, Buffer& b) { o.upload(b, &value, sizeof value); }},
      {"work: download", [&](Ops& o, Buffer& b) { o.download(&value, b, sizeof value); }},
      {"work: synchronize", [](Ops& o, Buffer&) { o.synchronize(); }},
      {"work: wait", [](Ops& o, Buffer&) { o.wait(); }}};
  for (const auto& [expected, call] : calls) {
    WaitingOps ops(*cpu);
    const std::unique_ptr<Buffer> buffer = ops.allocate(sizeof value, "buffer");
    ops.upload(*buffer, &value, sizeof value);
    OneStep pipeline([&, &work = call] { work(ops, *buffer); });
    ops.queue(pipeline);
    ops.download(&value, *buffer, sizeof value);
    ops.synchronize();
    CHECK(ops.first_wait() == expected);
  }
}

TEST_CASE("no wrapper of the encoder waits for the device") {
  for (const int head_size : {72, 80}) {
    for (const char* name : {"MM_TORCH_SDPA", "MM_FLASH_ATTN", "MM_TRITON_ATTN", "MM_FLASHINFER"}) {
      expect_pass(small_mm_problem(head_size), name);
    }
  }
}

TEST_CASE("fp8 scales from the current tensors are made and used without the host") {
  for (const int head_size : {72, 80}) {
    for (const AmaxKind amax : {AmaxKind::kAbs, AmaxKind::kSigned}) {
      Problem problem = small_mm_problem(head_size, MmAttnDtype::kFp8);
      problem.mm_encoder.amax = amax;
      expect_pass(problem, "MM_FLASHINFER");
    }
  }
}

TEST_CASE("fp8 scales from a file are uploaded before the first step") {
  const TestFolder folder;
  const std::filesystem::path path = folder / "scales.json";
  write_mm_scales(path, {{"visual.blocks.0.attn.attn", {0.02, 1.0, 0.01}}});
  for (const int head_size : {72, 80}) {
    Problem problem = small_mm_problem(head_size, MmAttnDtype::kFp8);
    problem.mm_encoder.fp8_scale_path = path.string();
    expect_pass(problem, "MM_FLASHINFER");
  }
}

TEST_CASE("the scale file of the first wrap is written when the outputs are read") {
  const TestFolder folder;
  Problem problem = small_mm_problem(72, MmAttnDtype::kFp8);
  const std::filesystem::path path = folder / "scales.json";
  problem.mm_encoder.fp8_scale_save_path = path.string();
  expect_pass(problem, "MM_FLASHINFER");
  CHECK(read_mm_scales(path).layers.size() == 1);
}

TEST_CASE("a work that waits for the device cannot be captured") {
  Device device;
  const auto buffer = device.ops->allocate(4, "buffer");
  int value = 0;
  CHECK_THROWS_AS(device.capture({[&] { device.ops->upload(*buffer, &value, sizeof value); }}),
                  DeviceError);
  CHECK_THROWS_AS(device.capture({[&] { device.ops->download(&value, *buffer, sizeof value); }}),
                  DeviceError);
  CHECK_THROWS_AS(device.capture({[&] { device.ops->wait(); }}), DeviceError);
  CHECK_THROWS_AS(device.capture({[&] { device.ops->allocate(4, "another"); }}), DeviceError);
}

TEST_CASE("MLA's products by a library are planned before the first step, and only launched then") {
  for (const bool fused : {true, false}) {
    CAPTURE(fused);
    Problem problem = make_problem(kMlaScenario, {});
    problem.mla.fused_steps = fused;
    cuda::FakeLibrary library;
    library.workspace_bytes = 64;
    Device device(library.opener());
    const std::unique_ptr<Case> the_case = make_case(problem, {});
    const std::unique_ptr<CaseRun> case_run = the_case->start(*find_backend("MLA"));
    const std::unique_ptr<Pipeline> pipeline = case_run->prepare(*device.ops);
    const std::size_t planned = library.planned.size();
    const std::size_t allocations = device.runtime->allocations.size();
    // Of a chunk and of the new tokens; those of query and value are parts of fused steps.
    CHECK(planned >= (fused ? 2 : 4));
    CHECK(library.runs == 0);
    Part works;
    for (const Step& step : pipeline->steps()) works.push_back(step.run);
    CHECK_NOTHROW(device.capture(works));
    CHECK(library.runs >= static_cast<int>(planned));
    CHECK(library.planned.size() == planned);
    CHECK(device.runtime->allocations.size() == allocations);
  }
}

TEST_CASE("every step of the encoder can be captured, in fp8 with loaded and with made scales") {
  const TestFolder folder;
  const std::filesystem::path path = folder / "scales.json";
  write_mm_scales(path, {{"visual.blocks.0.attn.attn", {0.02, 1.0, 0.01}}});
  for (const int head_size : {72, 80}) {
    for (const char* name : {"MM_TORCH_SDPA", "MM_FLASH_ATTN", "MM_TRITON_ATTN", "MM_FLASHINFER"}) {
      expect_captured(small_mm_problem(head_size), name);
    }
    Problem fp8 = small_mm_problem(head_size, MmAttnDtype::kFp8);
    expect_captured(fp8, "MM_FLASHINFER");
    fp8.mm_encoder.fp8_scale_path = path.string();
    expect_captured(fp8, "MM_FLASHINFER");
  }
}

}  // namespace attnbench::matrix
