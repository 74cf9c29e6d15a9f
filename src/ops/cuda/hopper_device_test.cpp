// Instructions and kernels of Hopper on a GPU against the CPU. Skipped, with the reason, where
// there is none.
#include <doctest/doctest.h>

#include <array>
#include <random>

#include "ops/cuda/attention/attend_latent_cases_testing.h"
#include "ops/cuda/attention/attend_tiles_cases_testing.h"
#include "ops/cuda/attention/hopper_cases_testing.h"
#include "ops/cuda/matmul/warpgroup_probe_testing.h"
#include "ops/cuda/move/tma_copy_testing.h"
#include "ops/cuda/testing/device_testing.h"

namespace attnbench::cuda {
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

TEST_CASE("attention by the Hopper kernel gives on the GPU what it gives on the CPU") {
  check_on_hopper(hopper_operation_cases());
}

TEST_CASE("attention over e4m3 by the Hopper kernel gives on the GPU what the CPU gives") {
  check_on_hopper(hopper_code_operation_cases());
}

TEST_CASE("forms of features by the Hopper kernel give on the GPU what the CPU gives") {
  check_on_hopper(hopper_feature_operation_cases());
}

TEST_CASE("forms of int8 scores by the Hopper kernel give on the GPU what the CPU gives") {
  check_on_hopper(hopper_int8_form_cases());
}

TEST_CASE("forms of e4m3 products by the Hopper kernel give on the GPU what the CPU gives") {
  check_on_hopper(hopper_code_form_operation_cases());
}

TEST_CASE("attention by a list of tiles gives on the GPU what it gives on the CPU") {
  std::vector<OperationCase> cases;
  add_tile_cases(cases);
  check_on_hopper(cases);
}

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

TEST_CASE("latents in e4m3 give on a Hopper GPU what the CPU gives, twice the same") {
  std::vector<OperationCase> cases;
  add_latent_codes_cases(cases);
  check_on_hopper(cases, kLatentCodesKernel);
}

TEST_CASE("latents gathered in pairs of CTAs give on a Hopper GPU what the CPU gives, twice") {
  std::vector<OperationCase> cases;
  add_gathered_attend_cases(cases);
  std::erase_if(cases, [](const OperationCase& c) {
    return c.name.find("fp8_ds_mla") == c.name.npos && c.name.find("e4m3") == c.name.npos;
  });
  check_on_hopper(cases, "hopper_gathered:pair=1");
}

}  // namespace attnbench::cuda
