// Every operation on a GPU against the same on the CPU. Skipped, with the reason, where there is no
// device.
#include <doctest/doctest.h>

#include <algorithm>
#include <cmath>
#include <cstring>
#include <string_view>

#include "ops/cuda/attention/decode_int8_cases_testing.h"
#include "ops/cuda/matmul/few_rows.h"
#include "ops/cuda/testing/all_cases_testing.h"
#include "ops/cuda/testing/device_testing.h"

namespace attnbench::cuda {
namespace {

/// Whether all of them are of cuBLASLt.
bool is_librarys(const std::vector<KernelInfo>& kernels) {
  CHECK(kernels.size() == 1);
  return std::all_of(kernels.begin(), kernels.end(), [](const KernelInfo& kernel) {
    return kernel.name.find(" by cuBLASLt ") != std::string::npos;
  });
}

}  // namespace

TEST_CASE("every operation but attention gives on the GPU what it gives on the CPU") {
  std::vector<OperationCase> cases = operation_cases();
  add_coverage_cases(cases);
  add_indexer_cases(cases);
  add_latent_query_cases(cases);
  add_value_output_cases(cases);
  check_on_device(cases);
}

TEST_CASE("attention gives on the GPU what it gives on the CPU") {
  std::vector<OperationCase> cases;
  add_attend_cases(cases);
  add_f32_attend_cases(cases);
  add_general_attend_cases(cases);
  check_on_device(cases);
}

TEST_CASE("products by cuBLASLt and by the own kernel on the GPU are those of the CPU") {
  CudaOps* const gpu = device_ops();
  if (gpu == nullptr) return;
  const CublasLtChoice found = open_cublas_lt(gpu->runtime(), gpu->stream());
  if (!found.library) MESSAGE(found.missing << ": everything is by the own kernel");
  using enum Dtype;
  std::vector<MatmulCase> products = matmul_cases();
  // Of a model with 128 heads, and of one rank of 8; a decode of one token.
  for (const MatmulCase& c : std::vector<MatmulCase>{{kBF16, kBF16, 128, 64, 512, 128},
                                                     {kBF16, kBF16, 128, 1, 128, 512},
                                                     {kF16, kF16, 16, 33, 512, 128},
                                                     {kBF16, kBF16, 1, 300, 4096, 512, true, 64},
                                                     {kF32, kF32, 16, 100, 128, 512}}) {
    products.push_back(c);
  }
  const std::unique_ptr<CudaOps> own = open_device(/*with_cublas_lt=*/false);
  REQUIRE(own != nullptr);
  std::vector<OperationCase> cases;
  for (const MatmulCase& c : products) {
    cases.push_back(matmul_case(c));
    CAPTURE(cases.back().name);
    gpu->take_kernels();
    const std::vector<Tensor> first = cases.back().run(*gpu);
    const std::vector<Tensor> second = cases.back().run(*gpu);
    CHECK(first_difference(first[0], second[0], 0, 0) < 0);
    const bool by_library = is_librarys(gpu->take_kernels());
    const bool has_types = c.output == c.dtype || c.output == kF32;
    if (!found.library || c.k == 0 || c.one_row || !has_types) {
      CHECK_FALSE(by_library);
    } else if (c.k % 8 == 0 && c.n % 8 == 0 && c.padding % 8 == 0) {
      CHECK(by_library);  // it may have no algorithm for other alignments
    }
    cases.back().run(*own);
    CHECK_FALSE(is_librarys(own->take_kernels()));
  }
  check_on_device(cases);
  check_on_device(cases, own.get());
}

TEST_CASE("rows of a product by the own kernels on the GPU do not depend on how many there are") {
  const std::unique_ptr<CudaOps> own = device_ops() == nullptr ? nullptr : open_device(false);
  if (own == nullptr) return;
  // Of the first rows in A, by the kernel of few rows and by that of many.
  const auto product = [&](attn::i64 rows) {
    constexpr int kRows = 200;
    constexpr int kN = 128;
    constexpr int kK = 512;
    CaseMemory memory(*own);
    attn::MatmulParams p{};
    p.element = p.output_element = attn::Element::kBF16;
    p.a = memory.upload(drawn(Dtype::kBF16, {kRows, kK}, 81, false));
    p.b = memory.upload(drawn(Dtype::kBF16, {kK, kN}, 82, false));
    p.c = memory.result(poisoned(Dtype::kBF16, {kRows, kN}));
    p.a_row_stride = p.k = kK;
    p.b_row_stride = p.c_row_stride = p.n = kN;
    p.num_batches = 1;
    p.m = rows;
    p.batch_invariant = 1;
    CHECK(prefers_few_rows(p) == (rows <= kMostFewRows));
    own->matmul(p);
    return memory.results().at(0);
  };
  const Tensor many = product(200);
  for (const attn::i64 rows : {1, 20, 50, 128}) {
    CAPTURE(rows);
    const Tensor few = product(rows);
    CHECK(std::memcmp(few.bytes(), many.bytes(), static_cast<std::size_t>(rows) * 128 * 2) == 0);
  }
}

TEST_CASE("the query of MLA decodes on the GPU has the bytes of its steps") {
  const std::unique_ptr<CudaOps> own = device_ops() == nullptr ? nullptr : open_device(false);
  if (own == nullptr) return;
  for (const LatentQueryCase& c : latent_query_cases()) {
    CAPTURE(latent_query_case(c).name);
    LatentQueryCall whole(*own, c);
    if (!own->fuses(whole.params)) continue;
    own->make_latent_query(whole.params);
    LatentQueryCall apart(*own, c);
    own->matmul(apart.params.project);
    own->concat(apart.params.join);
    if (c.is_quantised) own->quantise_fp8(apart.params.quantise);
    if (apart.params.pad.num_heads > 0) own->concat(apart.params.pad);
    if (c.writes) own->write_mla_cache(apart.params.write);
    const std::vector<Tensor> actual = whole.memory.results();
    const std::vector<Tensor> expected = apart.memory.results();
    for (std::size_t t = 0; t < expected.size(); ++t) {
      CHECK(first_difference(actual[t], expected[t], 0, 0) < 0);
    }
  }
}

TEST_CASE("values and codes of MLA decodes on the GPU have the bytes of their steps") {
  const std::unique_ptr<CudaOps> own = device_ops() == nullptr ? nullptr : open_device(false);
  if (own == nullptr) return;
  for (const ValueOutputCase& c : value_output_cases()) {
    CAPTURE(value_output_case(c).name);
    ValueOutputCall whole(*own, c);
    if (!own->fuses(whole.params)) continue;
    own->project_values(whole.params);
    ValueOutputCall apart(*own, c);
    own->matmul(apart.params.project);
    if (c.codes == attn::OutputCodes::kScale) own->quantise_fp8(apart.params.by_scale);
    if (c.codes == attn::OutputCodes::kGroups) own->quantise_fp8_groups(apart.params.by_groups);
    if (apart.params.clear.num_tokens > 0) own->concat(apart.params.clear);
    if (c.codes == attn::OutputCodes::kBlocks) own->quantise_nvfp4(apart.params.by_blocks);
    const std::vector<Tensor> actual = whole.memory.results();
    const std::vector<Tensor> expected = apart.memory.results();
    for (std::size_t t = 0; t < expected.size(); ++t) {
      CHECK(first_difference(actual[t], expected[t], 0, 0) < 0);
    }
  }
}

TEST_CASE("joined splits and parts of plans give on the GPU what they give on the CPU") {
  std::vector<OperationCase> cases;
  add_attend_cases(cases, decode_form_cases());
  check_on_device(cases);
  // Without clusters too: what does not fit the kernel is left out.
  std::erase_if(cases, [](const OperationCase& c) { return c.name.find("f32") != c.name.npos; });
  check_on_device(cases, device_ops(), "decode:cluster=0");
}

TEST_CASE("every decode in tiles of up to 128 rows gives on the GPU what it gives on the CPU") {
  for (const char* forced : {"decode:rows=32", "decode:rows=64", "decode:rows=128:cluster=0"}) {
    CAPTURE(forced);
    std::vector<OperationCase> cases;
    add_attend_cases(cases, many_row_cases());
    check_on_device(cases, device_ops(), forced);
  }
}

TEST_CASE("decodes by int8 scores give on the GPU what the CPU gives, twice the same bytes") {
  CudaOps* const gpu = device_ops();
  if (gpu == nullptr) return;
  const std::vector<OperationCase> cases = int8_decode_operation_cases();
  check_on_device(cases);
  for (const OperationCase& c : cases) {
    CAPTURE(c.name);
    const std::vector<Tensor> once = c.run(*gpu);
    const std::vector<Tensor> again = c.run(*gpu);
    for (std::size_t t = 0; t < once.size(); ++t) {
      CHECK(first_difference(again[t], once[t], 0, 0) < 0);
    }
  }
}

TEST_CASE("splits joined on the GPU have the same bytes in every run") {
  CudaOps* const gpu = device_ops();
  if (gpu == nullptr) return;
  for (const AttendCase& c : decode_form_cases()) {
    CAPTURE(c.name);
    const std::vector<Tensor> first = run_attend(*gpu, c);
    for (int i = 0; i < 5; ++i) {
      const std::vector<Tensor> again = run_attend(*gpu, c);
      for (std::size_t t = 0; t < first.size(); ++t) {
        CHECK(first_difference(again[t], first[t], 0, 0) < 0);
      }
    }
  }
}

TEST_CASE("a captured plan follows the lengths from one replay to the next") {
  CudaOps* const gpu = device_ops();
  if (gpu == nullptr) return;
  // The keys of the longest lengths; what lies past the current ones is not seen.
  const AttendCase c{
      .name = "", .query_lens = {1, 1, 2, 1}, .context_lens = {300, 900, 50, 0}, .group = 4};
  const std::vector<std::vector<int>> lens{
      {301, 901, 52, 1}, {1, 2, 2, 1}, {300, 3, 52, 1}, {65, 640, 50, 1}, {301, 901, 52, 1}};
  // On each Ops the same: lengths change between runs, here by replays of what was captured once.
  const auto outputs = [&](Ops& ops, const auto& prepare, const auto& run) {
    CaseMemory memory(ops);
    attn::AttendParams p = attend_params(c, memory);
    const std::unique_ptr<Buffer> buffer = ops.allocate(lens[0].size() * sizeof(int), "lengths");
    p.seq_lens = buffer->as<int>();
    const DevicePlan plan(p, 9, memory);
    std::vector<std::vector<Tensor>> all;
    for (std::size_t i = 0; i < lens.size(); ++i) {
      ops.upload(*buffer, lens[i].data(), lens[i].size() * sizeof(int));
      if (i == 0) prepare([&] { plan.run(ops, p); });
      run([&] { plan.run(ops, p); });
      all.push_back(memory.results());
    }
    return all;
  };
  const std::unique_ptr<Ops> cpu = make_cpu_ops(2);
  const auto expected = outputs(
      *cpu, [](const auto&) {}, [](const auto& plan) { plan(); });
  Runtime& runtime = gpu->runtime();
  const StreamHandle stream = gpu->stream().handle();
  GraphHandle graph = nullptr;
  const auto actual = outputs(
      *gpu,
      [&](const auto& plan) {
        plan();  // kernels are compiled and loaded before they are captured
        gpu->synchronize();
        runtime.begin_capture(stream);
        plan();
        graph = runtime.end_capture(stream);
      },
      [&](const auto&) { runtime.launch_graph(graph, stream); });
  runtime.release_graph(graph);
  for (std::size_t i = 0; i < lens.size(); ++i) {
    CAPTURE(i);
    for (std::size_t t = 0; t < expected[i].size(); ++t) {
      CHECK(first_difference(actual[i][t], expected[i][t], 4e-2, 2e-2) < 0);
    }
  }
}

TEST_CASE("a product of f32 on the GPU is not rounded to tf32, and can be captured in a graph") {
  CudaOps* const gpu = device_ops();
  if (gpu == nullptr) return;
  constexpr int kSize = 192;
  Tensor a = drawn(Dtype::kF32, {kSize, kSize}, 51, false);
  Tensor b = drawn(Dtype::kF32, {kSize, kSize}, 52, false);
  // |c| is about 1, as semantics §14.2 wants it.
  for (std::int64_t i = 0; i < a.num_elements(); ++i) {
    a.set(i, std::clamp(a.at(i), -3.0f, 3.0f) / std::sqrt(static_cast<float>(kSize)));
    b.set(i, std::clamp(b.at(i), -3.0f, 3.0f));
  }
  CaseMemory memory(*gpu);
  attn::MatmulParams p{};
  p.a = memory.upload(a);
  p.b = memory.upload(b);
  p.a_row_stride = p.b_row_stride = p.c_row_stride = p.m = p.n = p.k = kSize;
  p.num_batches = 1;
  p.c = memory.result(poisoned(Dtype::kF32, {kSize, kSize}));
  gpu->prepare_matmul(p);
  gpu->matmul(p);
  const Tensor direct = memory.results().at(0);
  p.c = memory.result(poisoned(Dtype::kF32, {kSize, kSize}));
  Runtime& runtime = gpu->runtime();
  runtime.begin_capture(gpu->stream().handle());
  gpu->matmul(p);
  const GraphHandle graph = runtime.end_capture(gpu->stream().handle());
  runtime.launch_graph(graph, gpu->stream().handle());
  const Tensor captured = memory.results().at(1);
  runtime.release_graph(graph);
  CHECK(first_difference(captured, direct, 0, 0) < 0);
  double worst = 0;
  for (std::int64_t i = 0; i < direct.num_elements(); ++i) {
    double sum = 0;
    for (std::int64_t k = 0; k < kSize; ++k) {
      sum += double{a.at(i / kSize * kSize + k)} * double{b.at(k * kSize + i % kSize)};
    }
    const double off = std::fabs(double{direct.at(i)} - sum) / (1 + std::fabs(sum));
    worst = std::isnan(off) ? INFINITY : std::max(worst, off);
  }
  CHECK(worst <= 2e-5);
}

TEST_CASE("attention by every kernel that fits gives on the GPU what it gives on the CPU") {
  CudaOps* const gpu = device_ops();
  if (gpu == nullptr) return;
  std::vector<OperationCase> cases;
  add_attend_cases(cases);
  for (const char* kernel : {"decode", "hopper_prefill", "prefill"}) {
    if (kernel == std::string_view("hopper_prefill") && gpu->launcher().target().sm != 90) continue;
    std::vector<OperationCase> forced;
    for (const OperationCase& c : cases) {
      std::vector<KernelSpec> specs;
      const std::unique_ptr<Ops> recording = make_recording_ops(gpu->launcher().target(), specs);
      recording->force_kernel(kernel);
      try {
        c.run(*recording);
      } catch (const Error&) {
        continue;  // does not fit
      }
      OperationCase& held = forced.emplace_back(c);
      held.name += std::string(" by ") + kernel;
      held.run = [run = c.run, kernel](Ops& ops) {
        const bool is_cpu = ops.device_name() == "cpu";
        if (!is_cpu) ops.force_kernel(kernel);
        std::vector<Tensor> results = run(ops);
        if (!is_cpu) ops.force_kernel("");
        return results;
      };
    }
    CHECK(forced.size() > 5);
    check_on_device(forced);
  }
}

TEST_CASE("a kernel that writes past a buffer on the GPU is found, with buffer and kernel") {
  CudaOps* const gpu = device_ops();
  if (gpu == nullptr) return;
  gpu->take_kernels();
  const std::unique_ptr<Buffer> source = gpu->allocate(64 * 1024, "source");
  const std::unique_ptr<Buffer> output = gpu->allocate(6 * 64, "planted output");
  // Four rows are gathered into room for three.
  const std::vector<int> starts{0, 4};
  const std::vector<int> table{0};
  const std::unique_ptr<Buffer> cu_seq_lens = gpu->allocate(8, "starts");
  const std::unique_ptr<Buffer> block_table = gpu->allocate(4, "table");
  gpu->upload(*cu_seq_lens, starts.data(), 8);
  gpu->upload(*block_table, table.data(), 4);
  // Why filled: memory of an earlier buffer may hold the very bytes that guard the output.
  gpu->runtime().fill(source->data(), 0, 64 * 1024, gpu->stream().handle());
  attn::CpGatherParams p{};
  p.entries.element = attn::Element::kBF16;
  p.entries.cache = source->data();
  p.entries.block_stride = 16 * 64;
  p.entries.slot_stride = 64;
  p.entries.block_table = block_table->as<int>();
  p.entries.block_table_stride = 1;
  p.entries.block_size = 16;
  p.entries.entry_size = 64;
  p.output = output->data();
  p.output_token_stride = 64;
  p.cu_seq_lens = cu_seq_lens->as<int>();
  p.num_requests = 1;
  p.num_tokens = 4;
  gpu->cp_gather(p);
  try {
    gpu->synchronize();
    FAIL("the overrun was not found");
  } catch (const Error& error) {
    const std::string message = error.what();
    MESSAGE(message);
    CHECK(message.find("planted output: 128 bytes past its end") != std::string::npos);
    CHECK(message.find("cp_gather") != std::string::npos);
  }
  gpu->synchronize();  // is reported once
}

TEST_CASE(
    "a write far behind a buffer of a device is found by its kernel, and told with the place") {
  CudaOps* ops = device_ops();
  if (ops == nullptr) return;
  const auto output = ops->allocate(1001, "output");
  ops->synchronize();
  for (const std::ptrdiff_t at : {std::ptrdiff_t{1001}, std::ptrdiff_t{1001 + 65536}}) {
    ops->runtime().fill(output->as<char>() + at, 0, 1, ops->stream().handle());
    std::string message;
    try {
      ops->synchronize();
    } catch (const Error& error) {
      message = error.what();
    }
    CHECK(message.find("output: 1 byte past its end was overwritten, the first at byte " +
                       std::to_string(at)) != std::string::npos);
    CHECK_NOTHROW(ops->synchronize());
  }
}

}  // namespace attnbench::cuda
