// Every operation on a GPU against the same on the CPU. Skipped, with the reason, where there is no
// device.
#include <doctest/doctest.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <cmath>
#include <cstdlib>
#include <cstring>
#include <filesystem>
#include <iostream>
#include <random>
#include <string_view>

#include "core/error.h"
#include "core/system/parallel.h"
#include "jit/kernel_store.h"
#include "ops/cuda/attention/attend_latent_cases_testing.h"
#include "ops/cuda/attention/hopper_cases_testing.h"
#include "ops/cuda/cuda_ops.h"
#include "ops/cuda/matmul/warpgroup_probe_testing.h"
#include "ops/cuda/move/tma_copy_testing.h"
#include "ops/cuda/recording_ops.h"
#include "ops/cuda/testing/all_cases_testing.h"

namespace attnbench::cuda {
namespace {

std::filesystem::path cache_dir() {
  return std::filesystem::temp_directory_path() /
         ("attnbench-device-test-" + std::to_string(getpid()));
}

/// Null, after a message, where nothing can be run.
std::unique_ptr<CudaOps> open_device(bool with_cublas_lt) {
  try {
    return make_cuda_ops(0, cache_dir().string(), with_cublas_lt);
  } catch (const Error& error) {
    MESSAGE("skipped: " << std::string(error.what()));
    return nullptr;
  }
}

CudaOps* device_ops() {
  static const std::unique_ptr<CudaOps> ops = open_device(/*with_cublas_lt=*/true);
  return ops.get();
}

/// Into the cache, on all cores: one after another they take minutes.
void compile_kernels(const std::vector<KernelSpec>& specs, const Target& target) {
  const std::unique_ptr<KernelStore> store = make_kernel_store(cache_dir().string());
  ThreadPool().parallel_for(static_cast<std::int64_t>(specs.size()), [&](std::int64_t i, int) {
    try {
      store->get(specs[static_cast<std::size_t>(i)], arch_of_sm(target.sm));
    } catch (const Error&) {
      // Is thrown again where the kernel is launched, and fails the test there.
    }
  });
}
void compile_kernels(const std::vector<OperationCase>& cases, const Target& target,
                     const char* forced) {
  std::vector<KernelSpec> specs;
  const std::unique_ptr<Ops> recording = make_recording_ops(target, specs);
  recording->force_kernel(forced);
  for (const OperationCase& c : cases) c.run(*recording);
  compile_kernels(specs, target);
}

bool close_enough(double a, double b, double tolerance, double absolute) {
  if (std::isnan(a) || std::isnan(b)) return std::isnan(a) && std::isnan(b);
  if (std::isinf(a) || std::isinf(b)) return a == b;
  return std::fabs(a - b) <= absolute + tolerance * (1e-2 + std::fabs(b));
}

/// Index of the first element that differs, or -1.
std::int64_t first_difference(const Tensor& actual, const Tensor& expected, double tolerance,
                              double absolute) {
  if (tolerance == 0) {
    if (std::memcmp(actual.bytes(), expected.bytes(), expected.size_bytes()) == 0) return -1;
    const std::size_t size = dtype_size(expected.dtype());
    for (std::int64_t i = 0; i < expected.num_elements(); ++i) {
      const std::size_t at = static_cast<std::size_t>(i) * size;
      if (std::memcmp(actual.bytes() + at, expected.bytes() + at, size) != 0) return i;
    }
  }
  for (std::int64_t i = 0; i < expected.num_elements(); ++i) {
    if (!close_enough(static_cast<double>(actual.at(i)), static_cast<double>(expected.at(i)),
                      tolerance, absolute)) {
      return i;
    }
  }
  return -1;
}

/// With ATTNBENCH_TEST_PROGRESS set: which case is next, to find the one that hangs.
void announce(const OperationCase& c) {
  if (std::getenv("ATTNBENCH_TEST_PROGRESS") != nullptr) std::cerr << c.name << std::endl;
}

/// Every case gives on the GPU what it gives on the CPU; attention by the kernel `forced`.
void check_on_device(const std::vector<OperationCase>& cases, CudaOps* gpu = device_ops(),
                     const char* forced = "") {
  if (gpu == nullptr) return;
  const std::unique_ptr<Ops> cpu = make_cpu_ops(2);
  compile_kernels(cases, gpu->launcher().target(), forced);
  for (const OperationCase& c : cases) {
    CAPTURE(c.name);
    announce(c);
    const std::vector<Tensor> expected = c.run(*cpu);
    gpu->force_kernel(forced);
    const std::vector<Tensor> actual = c.run(*gpu);
    gpu->force_kernel("");
    REQUIRE(actual.size() == expected.size());
    for (std::size_t i = 0; i < expected.size(); ++i) {
      CAPTURE(i);
      const std::int64_t at =
          first_difference(actual[i], expected[i], c.tolerance, c.absolute_tolerance);
      CAPTURE(at);
      if (at >= 0) {
        CAPTURE(actual[i].at(at));
        CAPTURE(expected[i].at(at));
        CHECK(at < 0);
      }
    }
  }
  CHECK_FALSE(gpu->take_kernels().empty());
}

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
  check_on_device(cases);
}

TEST_CASE("attention gives on the GPU what it gives on the CPU") {
  std::vector<OperationCase> cases;
  add_attend_cases(cases);
  add_f32_attend_cases(cases);
  add_general_attend_cases(cases);
  check_on_device(cases);
}

namespace {

/// The cases by a kernel for Hopper give what the CPU gives, and the same bytes a second time.
void check_on_hopper(const std::vector<OperationCase>& cases, const char* kernel) {
  CudaOps* const gpu = device_ops();
  if (gpu == nullptr) return;
  if (gpu->launcher().target().sm != 90) {
    MESSAGE("skipped: compute capability " << gpu->launcher().target().sm << ", it is for 90");
    return;
  }
  check_on_device(cases, gpu, kernel);
  for (const OperationCase& c : cases) {
    CAPTURE(c.name);
    gpu->force_kernel(kernel);
    const std::vector<Tensor> once = c.run(*gpu);
    const std::vector<Tensor> again = c.run(*gpu);
    gpu->force_kernel("");
    for (std::size_t i = 0; i < once.size(); ++i)
      CHECK(first_difference(again[i], once[i], 0, 0) < 0);
  }
}

}  // namespace

TEST_CASE("the kernel of latents gives on a Hopper GPU what the CPU gives, twice the same") {
  std::vector<OperationCase> cases;
  add_latent_attend_cases(cases);
  check_on_hopper(cases, kLatentKernel);
}

TEST_CASE("gathered latents give on a Hopper GPU what the CPU gives, twice the same") {
  std::vector<OperationCase> cases;
  add_gathered_attend_cases(cases);
  check_on_hopper(cases, kGatheredKernel);
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

namespace {

/// Both tensors lie in buffers of their own, between guard zones; rows are padded to the stride.
std::vector<std::uint16_t> run_tma_copy(CudaOps& gpu, TmaCopy copy,
                                        const std::vector<std::uint16_t>& source) {
  const std::size_t bytes = source.size() * sizeof(std::uint16_t);
  const std::unique_ptr<Buffer> from = gpu.allocate(bytes, "from");
  const std::unique_ptr<Buffer> to = gpu.allocate(bytes, "to");
  gpu.upload(*from, source.data(), bytes);
  copy.from = from->data();
  copy.to = to->data();
  launch_tma_copy(gpu.launcher(), copy);
  gpu.synchronize();  // throws where a guard zone was written
  std::vector<std::uint16_t> copied(source.size());
  gpu.download(copied.data(), *to, bytes);
  return copied;
}

}  // namespace

TEST_CASE("a copy by tensor maps and clusters on the GPU moves every element and no other byte") {
  CudaOps* const gpu = device_ops();
  if (gpu == nullptr) return;
  if (gpu->launcher().target().sm < 90) {
    MESSAGE("skipped: the device has no tensor maps");
    return;
  }
  for (const TmaCopy& copy : tma_copies()) {
    CAPTURE(tma_copy_spec(copy).name);
    CAPTURE(static_cast<int>(copy.swizzle));
    const std::int64_t row = copy.row_stride;
    std::vector<std::uint16_t> source(
        static_cast<std::size_t>(copy.planes * copy.rows * copy.row_stride));
    for (std::size_t i = 0; i < source.size(); ++i) {
      source[i] = static_cast<std::uint16_t>(i * 40503u >> 3);
    }
    const std::vector<std::uint16_t> copied = run_tma_copy(*gpu, copy, source);
    std::int64_t wrong = 0;
    for (std::int64_t i = 0; i < static_cast<std::int64_t>(source.size()); ++i) {
      const auto at = static_cast<std::size_t>(i);
      // Memory is poison until it is written, and the padding of a row stays so.
      const std::uint16_t expected = i % row < copy.columns ? source[at] : std::uint16_t{0xFFFF};
      if (copied[at] != expected) ++wrong;
    }
    CHECK(wrong == 0);
  }
}

namespace {

/// Small whole numbers, of which every sum is exact: code by code, and their values.
struct ProbeMatrix {
  std::vector<std::uint8_t> bytes;
  std::vector<int> values;

  ProbeMatrix(attn::Element element, int count, unsigned seed) {
    std::mt19937 random(seed);
    for (int i = 0; i < count; ++i) {
      const int value = static_cast<int>(random() % 9) - 4;
      const auto number = static_cast<float>(value);
      values.push_back(value);
      if (element == attn::Element::kE4M3) {
        bytes.push_back(attn::e4m3_from_float(number));
        continue;
      }
      const std::uint16_t code = element == attn::Element::kBF16 ? attn::bf16_from_float(number)
                                                                 : attn::f16_from_float(number);
      bytes.push_back(static_cast<std::uint8_t>(code & 0xFF));
      bytes.push_back(static_cast<std::uint8_t>(code >> 8));
    }
  }
};

/// What the probe writes: the product in f32 and in bf16, and its report.
struct ProbeResult {
  std::vector<float> product;
  std::vector<std::uint16_t> rounded;
  std::array<int, 2> report{};
};

ProbeResult run_warpgroup_probe(CudaOps& gpu, const WarpgroupProbe& probe, const ProbeMatrix& a,
                                const ProbeMatrix& b) {
  const auto elements = static_cast<std::size_t>(64 * probe.columns);
  const auto left = gpu.allocate(a.bytes.size(), "a");
  const auto right = gpu.allocate(b.bytes.size(), "b");
  const auto product = gpu.allocate(elements * 4, "product");
  const auto rounded = gpu.allocate(elements * 2, "rounded");
  const auto report = gpu.allocate(8, "report");
  gpu.upload(*left, a.bytes.data(), a.bytes.size());
  gpu.upload(*right, b.bytes.data(), b.bytes.size());
  launch(gpu.launcher(), warpgroup_probe_spec(probe), warpgroup_probe_shape(probe), left->data(),
         right->data(), product->data(), rounded->data(), report->data());
  gpu.synchronize();
  ProbeResult result;
  result.product.resize(elements);
  result.rounded.resize(elements);
  gpu.download(result.product.data(), *product, elements * 4);
  gpu.download(result.rounded.data(), *rounded, elements * 2);
  gpu.download(result.report.data(), *report, 8);
  return result;
}

}  // namespace

TEST_CASE("products, barriers and stores of a warpgroup on the GPU are what they should be") {
  CudaOps* const gpu = device_ops();
  if (gpu == nullptr) return;
  if (gpu->launcher().target().sm != 90) {
    MESSAGE("skipped: the device has no products of warpgroups");
    return;
  }
  std::vector<KernelSpec> specs;
  for (const WarpgroupProbe& probe : warpgroup_probes()) {
    specs.push_back(warpgroup_probe_spec(probe));
  }
  compile_kernels(specs, gpu->launcher().target());
  for (const WarpgroupProbe& probe : warpgroup_probes()) {
    CAPTURE(warpgroup_probe_spec(probe).name);
    const ProbeMatrix a(probe.element, 64 * probe.depth, 1);
    const ProbeMatrix b(probe.element, probe.depth * probe.columns, 2);
    const ProbeResult result = run_warpgroup_probe(*gpu, probe, a, b);
    CHECK(result.report == std::array<int, 2>{1, 0});
    int wrong = 0;
    int wrong_rounded = 0;
    for (int row = 0; row < 64; ++row) {
      for (int column = 0; column < probe.columns; ++column) {
        int sum = 0;
        for (int k = 0; k < probe.depth; ++k) {
          const int at = probe.is_across() ? k * probe.columns + column : column * probe.depth + k;
          sum += a.values[static_cast<std::size_t>(row * probe.depth + k)] *
                 b.values[static_cast<std::size_t>(at)];
        }
        const auto at = static_cast<std::size_t>(row * probe.columns + column);
        if (result.product[at] != static_cast<float>(sum)) ++wrong;
        if (result.rounded[at] != attn::bf16_from_float(static_cast<float>(sum))) ++wrong_rounded;
      }
    }
    CHECK(wrong == 0);
    CHECK(wrong_rounded == 0);
  }
}

/// What they give on the CPU, twice the same, where the GPU has the instructions.
void check_hopper(const std::vector<OperationCase>& cases) {
  CudaOps* const gpu = device_ops();
  if (gpu == nullptr) return;
  if (gpu->launcher().target().sm != 90) {
    MESSAGE("skipped: the kernel is for compute capability 9.0");
    return;
  }
  check_on_device(cases);
  // The same bytes at every run: no order of its sums depends on time.
  for (const OperationCase& c : cases) {
    CAPTURE(c.name);
    const std::vector<Tensor> first = c.run(*gpu);
    const std::vector<Tensor> second = c.run(*gpu);
    for (std::size_t i = 0; i < first.size(); ++i) {
      CHECK(first_difference(second[i], first[i], 0, 0) < 0);
    }
  }
}

TEST_CASE("attention by the Hopper kernel gives on the GPU what it gives on the CPU") {
  check_hopper(hopper_operation_cases());
}

TEST_CASE("attention over e4m3 by the Hopper kernel gives on the GPU what the CPU gives") {
  check_hopper(hopper_code_operation_cases());
}

TEST_CASE("attention by a list of tiles gives on the GPU what it gives on the CPU") {
  std::vector<OperationCase> cases;
  add_tile_cases(cases);
  check_hopper(cases);
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
