// Pipelines queue their work and never wait for it: behind a closed gate a wait would hold up every
// sample, and in a captured stream it is an error. The edge-case matrix and the differential tests
// look at it too; here are the encoder's pipelines with scales of every origin.
#include <doctest/doctest.h>

#include <cmath>
#include <filesystem>

#include "core/test_folder.h"
#include "inputs/mm_scale_file.h"
#include "run_case.h"
#include "waiting_ops.h"

namespace attnbench::matrix {
namespace {

constexpr const char* kLayer = "visual.blocks.0.attn.attn";

Problem encoder(int head_size, MmAttnDtype dtype = MmAttnDtype::kAuto) {
  Problem p;
  p.scenario = p.case_name = "waiting";
  AttentionSpec& a = p.attention;
  a.type = AttentionType::kMmEncoder;
  a.causal = false;
  a.num_heads = 4;
  a.num_kv_heads = 2;
  a.head_size = a.v_head_size = head_size;
  a.scale = 1 / std::sqrt(double(head_size));
  p.mm_encoder.hidden_size = a.num_heads * head_size;
  p.mm_encoder.attn_dtype = dtype;
  p.mm_encoder.layer_names = {kLayer};
  p.batch = {{33, 33}, {0, 0}, {1, 1}, {40, 40}};
  return p;
}

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
      expect_pass(encoder(head_size), name);
    }
  }
}

TEST_CASE("fp8 scales from the current tensors are made and used without the host") {
  for (const int head_size : {72, 80}) {
    for (const AmaxKind amax : {AmaxKind::kAbs, AmaxKind::kSigned}) {
      Problem problem = encoder(head_size, MmAttnDtype::kFp8);
      problem.mm_encoder.amax = amax;
      expect_pass(problem, "MM_FLASHINFER");
    }
  }
}

TEST_CASE("fp8 scales from a file are uploaded before the first step") {
  const TestFolder folder;
  const std::filesystem::path path = folder / "scales.json";
  write_mm_scales(path, {{kLayer, {0.02, 1.0, 0.01}}});
  for (const int head_size : {72, 80}) {
    Problem problem = encoder(head_size, MmAttnDtype::kFp8);
    problem.mm_encoder.fp8_scale_path = path.string();
    expect_pass(problem, "MM_FLASHINFER");
  }
}

TEST_CASE("the scale file of the first wrap is written when the outputs are read") {
  const TestFolder folder;
  Problem problem = encoder(72, MmAttnDtype::kFp8);
  const std::filesystem::path path = folder / "scales.json";
  problem.mm_encoder.fp8_scale_save_path = path.string();
  expect_pass(problem, "MM_FLASHINFER");
  CHECK(read_mm_scales(path).layers.size() == 1);
}

}  // namespace attnbench::matrix
