// Products of few rows and what comes before and behind the attention of MLA decodes on emulated
// threads: the kernels' own code. Query and output must have the bytes of the operations that they
// stand for, given the same products.
#include <doctest/doctest.h>

#include <cmath>
#include <cstring>
#include <functional>
#include <memory>
#include <vector>

#include "ops/cuda/testing/emulated_cta_testing.h"

inline float __fmul_rn(float a, float b) { return a * b; }
inline float __fadd_rn(float a, float b) { return a + b; }
inline float __fdiv_rn(float a, float b) { return a / b; }
namespace attn {
template <int kCount>
void divide_for_codes(float (&values)[kCount], float divisor) {
  for (float& value : values) value /= divisor;
}
}  // namespace attn

// Device code comes behind what stands in for CUDA's keywords.
#include "kernels/fused/latent_query.cuh"
#include "kernels/fused/value_output.cuh"
#include "ops/cuda/matmul/few_rows.h"
#include "ops/cuda/matmul/few_rows_cases_testing.h"
#include "ops/cuda/merge/reduce_cases_testing.h"
#include "ops/cuda/operations.h"
#include "ops/forwarding_ops.h"

namespace attnbench::cuda {
namespace {

using attn::Element;
using attn::MlaEntry;
using attn::OutputCodes;

template <Element kOf, int kTileRows, int kTileColumns, int kStepsOfK, Element kTo = kOf,
          bool kWithWrites = false, MlaEntry kOfEntry = MlaEntry::kCopy,
          OutputCodes kOfOutput = OutputCodes::kNone, int kOfGroup = 16>
struct Config {
  static constexpr Element kElement = kOf;
  static constexpr int kRows = kTileRows;
  static constexpr int kColumns = kTileColumns;
  static constexpr int kSteps = kStepsOfK;
  static constexpr int kStages = kStepsOfK > 3 ? 3 : kStepsOfK;
  static constexpr Element kQuery = kTo;
  static constexpr bool kWrites = kWithWrites;
  static constexpr MlaEntry kEntry = kOfEntry;
  static constexpr OutputCodes kCodes = kOfOutput;
  static constexpr int kGroup = kOfGroup;
};
template <Element kOf, int kTileRows, int kTileColumns, int kStepsOfK, OutputCodes kOfOutput,
          int kOfGroup = 16>
using OutputConfig = Config<kOf, kTileRows, kTileColumns, kStepsOfK, kOf, false, MlaEntry::kCopy,
                            kOfOutput, kOfGroup>;

/// `work` by every CTA of a grid, whose shared memory was NaN before.
template <class C>
void run_grid(std::int64_t ctas, const std::function<void(unsigned char*)>& work) {
  const auto bytes =
      static_cast<std::size_t>(attn::few_rows_shared_bytes(C::kRows, C::kColumns, C::kStages));
  for (std::int64_t i = 0; i < ctas; ++i) {
    EmulatedCta cta(attn::few_rows_threads(C::kRows, C::kColumns), bytes);
    std::memset(cta.shared(), 0xFF, bytes);
    blockIdx.x = static_cast<unsigned>(i);
    cta.run([&] { work(cta.shared()); });
  }
}

template <class C>
void multiply(const attn::MatmulParams& p) {
  run_grid<C>(p.num_batches * attn::few_rows_tiles(p, C::kRows, C::kColumns),
              [&](unsigned char* memory) { attn::multiply_few_rows<C>(p, memory); });
}

/// The CPU, whose products are those of the kernel.
template <class C>
class EmulatedProducts final : public ForwardingOps {
 public:
  using ForwardingOps::ForwardingOps;
  void matmul(const attn::MatmulParams& p) override { multiply<C>(p); }
};

bool same_bytes(const std::vector<Tensor>& a, const std::vector<Tensor>& b) {
  if (a.size() != b.size()) return false;
  for (std::size_t i = 0; i < a.size(); ++i) {
    if (a[i].size_bytes() != b[i].size_bytes()) return false;
    if (std::memcmp(a[i].bytes(), b[i].bytes(), a[i].size_bytes()) != 0) return false;
  }
  return true;
}

template <class C>
void check_product(const MatmulCase& c) {
  CAPTURE(c.m);
  CAPTURE(c.n);
  CAPTURE(c.k);
  CAPTURE(C::kRows);
  CAPTURE(C::kColumns);
  const std::unique_ptr<Ops> cpu = make_cpu_ops(1);
  EmulatedProducts<C> emulated(*cpu);
  const std::vector<Tensor> actual = run_matmul(emulated, c);
  const std::vector<Tensor> expected = run_matmul(*cpu, c);
  double worst = 0;
  for (std::int64_t i = 0; i < expected[0].num_elements(); ++i) {
    const float a = actual[0].at(i);
    const float b = expected[0].at(i);
    // Past the last row, and beyond the range of f16.
    if (a == b || (std::isnan(a) && std::isnan(b))) continue;
    const double off = std::fabs(double{a} - double{b}) / (1 + std::fabs(double{b}));
    worst = std::isnan(off) ? INFINITY : std::max(worst, off);
  }
  CHECK(worst < 2e-2);
}

template <class C>
void check_query(const LatentQueryCase& c) {
  CAPTURE(c.tokens);
  CAPTURE(c.heads);
  const std::unique_ptr<Ops> cpu = make_cpu_ops(1);
  LatentQueryCall fused(*cpu, c);
  std::int64_t ctas =
      attn::few_rows_tiles(fused.params.project, C::kRows, C::kColumns) * (c.padded_heads);
  constexpr int kWarps = attn::few_rows_threads(C::kRows, C::kColumns) / 32;
  if (C::kWrites) ctas += (fused.params.write.num_slots + kWarps - 1) / kWarps;
  run_grid<C>(ctas,
              [&](unsigned char* memory) { attn::make_latent_query<C>(fused.params, memory); });
  // One after the other, by the CPU and the kernel's products.
  LatentQueryCall apart(*cpu, c);
  attn::LatentQueryParams& p = apart.params;
  multiply<C>(p.project);
  p.project.m = 0;  // they are made
  cpu->make_latent_query(p);
  CHECK(same_bytes(fused.memory.results(), apart.memory.results()));
}

template <class C>
void check_output(const ValueOutputCase& c) {
  CAPTURE(c.tokens);
  CAPTURE(c.heads);
  const std::unique_ptr<Ops> cpu = make_cpu_ops(1);
  ValueOutputCall fused(*cpu, c);
  const attn::MatmulParams& product = fused.params.project;
  CHECK(value_output_misfit(target_of_sm(90), fused.params) == "");
  run_grid<C>(product.num_batches * attn::few_rows_tiles(product, C::kRows, C::kColumns),
              [&](unsigned char* memory) { attn::project_values<C>(fused.params, memory); });
  ValueOutputCall apart(*cpu, c);
  attn::ValueOutputParams& p = apart.params;
  multiply<C>(p.project);
  p.project.m = 0;  // they are made
  cpu->project_values(p);
  CHECK(same_bytes(fused.memory.results(), apart.memory.results()));
}

/// o_l @ W_UV of 64 tokens and 16 heads.
attn::MatmulParams values_of_decodes() {
  attn::MatmulParams p{};
  p.element = p.output_element = Element::kBF16;
  p.a_batch_stride = p.a_row_stride = p.b_batch_stride = p.b_row_stride = 512;
  p.c_batch_stride = p.c_row_stride = 512;
  p.num_batches = 16;
  p.m = 64;
  p.n = 128;
  p.k = 512;
  return p;
}

/// Notes the grids of launches, each of which has to fit into a CTA's shared memory.
class NotingLauncher final : public Launcher {
 public:
  explicit NotingLauncher(int sm) : target_(target_of_sm(sm)) {}
  const Target& target() const override { return target_; }
  void launch(const KernelSpec&, const LaunchShape& shape,
              const std::vector<KernelArgument>&) override {
    CHECK(shape.shared_bytes <= target_.max_shared_bytes);
    grids.push_back(shape.grid_x);
  }
  std::vector<std::int64_t> grids;

 private:
  Target target_;
};

}  // namespace

TEST_CASE("products of few rows are those of the CPU, in tiles of every size") {
  using enum Dtype;
  check_product<Config<Element::kBF16, 16, 32, 2>>({kBF16, kBF16, 2, 5, 72, 128});
  check_product<Config<Element::kBF16, 32, 64, 8>>({kBF16, kBF16, 2, 40, 64, 512});
  check_product<Config<Element::kBF16, 64, 128, 2>>({kBF16, kBF16, 1, 70, 136, 104});
  check_product<Config<Element::kF16, 64, 64, 1>>({kF16, kF16, 2, 64, 64, 40, false, 8});
  check_product<Config<Element::kF16, 16, 128, 3>>({kF16, kF16, 1, 17, 128, 136});
  check_product<Config<Element::kF16, 32, 32, 4>>({kF16, kF16, 1, 32, 32, 256});
}

TEST_CASE("a product of few rows has the same bytes in tiles of any size") {
  using enum Dtype;
  const std::unique_ptr<Ops> cpu = make_cpu_ops(1);
  const MatmulCase c{kBF16, kBF16, 2, 50, 128, 192};
  EmulatedProducts<Config<Element::kBF16, 16, 32, 3>> small(*cpu);
  EmulatedProducts<Config<Element::kBF16, 64, 128, 3>> large(*cpu);
  CHECK(same_bytes(run_matmul(small, c), run_matmul(large, c)));
}

TEST_CASE("the query of MLA decodes in one launch has the bytes of its steps") {
  using enum Dtype;
  check_query<Config<Element::kBF16, 16, 64, 2>>({kBF16, 3, 2, 2, false, false});
  check_query<Config<Element::kBF16, 64, 128, 2, Element::kE4M3, true, MlaEntry::kE4M3>>(
      {kBF16, 37, 2, 4, true, true, MlaEntry::kE4M3});
  check_query<Config<Element::kF16, 32, 64, 2, Element::kF16, true>>(
      {kF16, 20, 3, 5, false, true, MlaEntry::kCopy});
  check_query<Config<Element::kBF16, 64, 64, 2, Element::kE4M3, true, MlaEntry::kDsMla>>(
      {kBF16, 70, 1, 1, true, true, MlaEntry::kDsMla});
  check_query<Config<Element::kF16, 16, 32, 1, Element::kE4M3>>(
      {kF16, 9, 2, 3, true, false, MlaEntry::kCopy, 64, 160, 32});
}

TEST_CASE("values and codes of MLA decodes in one launch have the bytes of their steps") {
  using enum Dtype;
  using enum OutputCodes;
  constexpr Element kBf = Element::kBF16;
  constexpr Element kHalf = Element::kF16;
  check_output<OutputConfig<kBf, 16, 64, 2, kNone>>({kBF16, 3, 2, kNone, 128, false, 128});
  check_output<OutputConfig<kBf, 32, 32, 2, kScale>>({kBF16, 37, 2, kScale, 128, false, 128});
  check_output<OutputConfig<kHalf, 64, 64, 2, kScale>>({kF16, 33, 2, kScale, 128, false, 72, 48});
  check_output<OutputConfig<kBf, 64, 128, 2, kGroups, 128>>(
      {kBF16, 70, 2, kGroups, 128, true, 128});
  check_output<OutputConfig<kBf, 16, 128, 1, kGroups, 64>>({kBF16, 20, 3, kGroups, 64, false, 64});
  check_output<OutputConfig<kHalf, 32, 64, 2, kGroups, 64>>(
      {kF16, 20, 3, kGroups, 64, true, 128, 192});
  check_output<OutputConfig<kBf, 64, 64, 2, kBlocks>>({kBF16, 70, 5, kBlocks, 16, true, 128});
  check_output<OutputConfig<kHalf, 16, 32, 3, kBlocks>>({kF16, 9, 3, kBlocks, 16, false, 160, 64});
  check_output<OutputConfig<kBf, 32, 128, 1, kBlocks>>({kBF16, 128, 1, kBlocks, 16, true, 64, 64});
}

TEST_CASE("what is no single launch of values and codes says why") {
  using enum OutputCodes;
  const std::unique_ptr<Ops> cpu = make_cpu_ops(1);
  const auto with = [&](const ValueOutputCase& c,
                        const std::function<void(attn::ValueOutputParams&)>& change) {
    ValueOutputCall call(*cpu, c);
    change(call.params);
    return value_output_misfit(target_of_sm(90), call.params);
  };
  const ValueOutputCase scaled{Dtype::kBF16, 4, 2, kScale};
  ValueOutputCall call(*cpu, scaled);
  CHECK(value_output_misfit(target_of_sm(80), call.params) ==
        "compute capability 80: it is for 90");
  CHECK(with(scaled, [](auto& p) { p.project.m = 129; }) == "129 tokens: it is for up to 128");
  CHECK(with(scaled, [](auto& p) { p.project.c_batch_stride = 256; }) ==
        "heads that do not lie side by side");
  CHECK(with(scaled, [](auto& p) { p.project.b_row_stride = 132; }) ==
        "rows of B lie on multiples of 8 bytes, 16 are needed");
  CHECK(with({Dtype::kBF16, 4, 2, kScale, 128, false, 512, 24}, [](auto&) {}) ==
        "heads of 24 columns: codes are made of 16 at a time");
  const std::string other = "codes of other things than the output";
  CHECK(with(scaled, [](auto& p) { p.by_scale.source = p.project.a; }) == other);
  CHECK(with(scaled, [](auto& p) { p.by_scale.num_rows = 3; }) == other);
  CHECK(with(scaled, [](auto& p) { p.by_scale.code_row_stride += 8; }) ==
        "codes lie on multiples of 8 bytes, 16 are needed");
  attn::i64 count = 0;
  const std::string counted = "a count of saturated elements: it has none";
  CHECK(with(scaled, [&](auto& p) { p.by_scale.num_saturated = &count; }) == counted);
  const ValueOutputCase grouped{Dtype::kBF16, 4, 2, kGroups};
  CHECK(with(grouped, [&](auto& p) { p.by_groups.num_saturated = &count; }) == counted);
  CHECK(with(grouped, [](auto& p) { p.by_groups.source_row_stride += 8; }) == other);
  CHECK(with({Dtype::kBF16, 4, 2, kGroups, 128, false, 512, 64}, [](auto&) {}) ==
        "groups of 128 columns in heads of 64");
  const ValueOutputCase blocks{Dtype::kBF16, 4, 2, kBlocks, 16, true};
  CHECK(with(blocks, [](auto& p) { p.by_blocks.num_columns -= 16; }) ==
        "zeros in other things than the scales of whole tiles");
  CHECK(with(blocks, [](auto& p) { p.clear.num_tokens = 4; }) ==
        "zeros in other things than the scales of whole tiles");
  CHECK(with(blocks, [](auto& p) { p.clear.output_token_stride += 4; }) ==
        "zeros in other things than the scales of whole tiles");
  CHECK(with(blocks, [](auto& p) { p.clear.element = Element::kBF16; }) ==
        "zeros in other things than the scales of whole tiles");
  // A tile has no more columns than 128.
  CHECK(with({Dtype::kBF16, 4, 2, kGroups, 256, false, 512, 256}, [](auto&) {}) ==
        "groups of 256 columns in heads of 256");
  CHECK(with({Dtype::kBF16, 4, 1, kBlocks, 16, true, 512, 48}, [](auto&) {}) ==
        "zeros in other things than the scales of whole tiles");
  CHECK(with({Dtype::kBF16, 4, 1, kBlocks, 16, false, 512, 48}, [](auto&) {}) == "");
}

TEST_CASE("what the kernel of few rows does not take says why") {
  attn::MatmulParams p = values_of_decodes();
  CHECK(few_rows_misfit(p) == "");
  CHECK(prefers_few_rows(p));
  const auto with = [&](const std::function<void(attn::MatmulParams&)>& change) {
    attn::MatmulParams changed = p;
    change(changed);
    return few_rows_misfit(changed);
  };
  CHECK(with([](auto& c) { c.element = c.output_element = Element::kF32; }) ==
        "f32 operands: it multiplies bf16 or f16");
  CHECK(with([](auto& c) { c.output_element = Element::kF32; }) ==
        "output in f32: it stores the type of the operands");
  CHECK(with([](auto& c) { c.b_transposed = 1; }) == "a transposed B: its rows are those of k");
  CHECK(with([](auto& c) { c.k = 520; }) ==
        "k 520 and n 128: it takes multiples of 8, k up to 512");
  CHECK(with([](auto& c) { c.n = 100; }) ==
        "k 512 and n 100: it takes multiples of 8, k up to 512");
  CHECK(with([](auto& c) { c.a_row_stride = 516; }) ==
        "rows of A lie on multiples of 8 bytes, 16 are needed");
  CHECK(with([](auto& c) { c.b_row_stride = 516; }) ==
        "rows of B lie on multiples of 8 bytes, 16 are needed");
  CHECK(with([](auto& c) { c.c_batch_stride = 516; }) ==
        "rows of C lie on multiples of 8 bytes, 16 are needed");
  p.m = kMostFewRows + 1;
  CHECK(few_rows_misfit(p) == "");
  CHECK_FALSE(prefers_few_rows(p));
}

TEST_CASE("what is no single launch of a latent query says why") {
  const std::unique_ptr<Ops> cpu = make_cpu_ops(1);
  const Target hopper = target_of_sm(90);
  const auto with = [&](const LatentQueryCase& c,
                        const std::function<void(attn::LatentQueryParams&)>& change) {
    LatentQueryCall call(*cpu, c);
    change(call.params);
    return latent_query_misfit(hopper, call.params);
  };
  const LatentQueryCase c{Dtype::kBF16, 4, 2, 2, true, true, MlaEntry::kE4M3};
  CHECK(with(c, [](auto&) {}) == "");
  LatentQueryCall call(*cpu, c);
  CHECK(latent_query_misfit(target_of_sm(80), call.params) ==
        "compute capability 80: it is for 90");
  CHECK(with(c, [](auto& p) { p.project.m = 129; }) == "129 tokens: it is for up to 128");
  CHECK(with(c, [](auto& p) { p.project.k = 20; }) ==
        "k 20 and n 512: it takes multiples of 8, k up to 512");
  CHECK(with(c, [](auto& p) { p.join.first_size = 8; }) ==
        "a join of other things than the product and its rope parts");
  CHECK(with(c, [](auto& p) { p.join.second_head_stride += 4; }) ==
        "rows of the rope part lie on multiples of 8 bytes, 16 are needed");
  CHECK(with(c, [](auto& p) { p.quantise.code_row_stride += 4; }) ==
        "codes that do not lie on multiples of 8 bytes");
  CHECK(with(c, [](auto& p) { p.quantise.codes = nullptr, p.join.output_head_stride += 4; }) ==
        "rows of the query lie on multiples of 8 bytes, 16 are needed");
  const std::string other_codes = "codes of other things than the joined query";
  CHECK(with(c, [](auto& p) { p.quantise.source = p.project.a; }) == other_codes);
  CHECK(with(c, [](auto& p) { p.quantise.num_columns -= 8; }) == other_codes);
  LatentQueryCase padded = c;
  padded.padded_heads = 4;
  CHECK(with(padded, [](auto&) {}) == "");
  const std::string other_padding = "padding that is not behind the heads of the query";
  CHECK(with(padded, [](auto& p) { p.pad.output = p.quantise.codes; }) == other_padding);
  CHECK(with(padded, [](auto& p) { p.pad.second_size = 8; }) == other_padding);
  padded.is_quantised = false;
  CHECK(with(padded, [](auto&) {}) == "");
  CHECK(with(padded, [](auto& p) { p.pad.output_token_stride += 8; }) == other_padding);
  attn::i64 count = 0;
  CHECK(with(c, [&](auto& p) { p.quantise.num_saturated = &count; }) ==
        "a count of saturated elements: it has none");
  CHECK(with(c, [](auto& p) { p.write.format = MlaEntry::kModel1; }) ==
        "entries of another type: it writes 16 bits as they are, e4m3 and fp8_ds_mla");
  CHECK(with(c, [](auto& p) { p.write.rope_head_dim = 4; }) ==
        "entries that are no multiples of 8 elements");
  const LatentQueryCase packed{Dtype::kBF16, 4, 2, 2, false, true, MlaEntry::kDsMla};
  CHECK(with(packed, [](auto&) {}) == "");
  CHECK(with(packed, [](auto& p) { p.write.kv_lora_rank = 256; }) ==
        "fp8_ds_mla of other sizes than 512 and 64, or not from bf16");
  CHECK(with(c, [](auto& p) { p.write.kv_c_token_stride += 4; }) ==
        "rows of new entries lie on multiples of 8 bytes, 16 are needed");
  CHECK(with(c, [](auto& p) { p.write.slot_stride += 4; }) ==
        "entries lie on multiples of 4 bytes, 8 are needed");
}

TEST_CASE("products of few rows fit into the shared memory of every architecture") {
  for (const int sm : {80, 86, 89, 90, 100, 120}) {
    CAPTURE(sm);
    NotingLauncher launcher(sm);
    attn::MatmulParams p = values_of_decodes();
    p.num_batches = 128;
    for (const int m : {1, 20, 64, 128}) {
      p.m = m;
      matmul(launcher, p);
    }
    CHECK(launcher.grids.size() == 4);
  }
}

TEST_CASE("new entries are written where there is no query, too") {
  const std::unique_ptr<Ops> cpu = make_cpu_ops(1);
  LatentQueryCall call(*cpu, {Dtype::kBF16, 4, 2, 2, false, true});
  call.params.project.m = call.params.join.num_tokens = call.params.pad.num_tokens = 0;
  NotingLauncher launcher(90);
  make_latent_query(launcher, call.params);
  // 11 entries, two warps a CTA.
  CHECK(launcher.grids == std::vector<std::int64_t>{6});
}

TEST_CASE("tiles of few rows are as large as gives nearly every multiprocessor one") {
  attn::MatmulParams p{};
  p.num_batches = 128;
  p.m = 64;
  p.n = 512;
  const auto tile = [&] {
    const FewRowsTile chosen = few_rows_tile(p, 132);
    return std::vector<int>{chosen.rows, chosen.columns};
  };
  CHECK(tile() == std::vector<int>{64, 128});
  p.num_batches = 16;
  CHECK(tile() == std::vector<int>{64, 64});
  p.n = 128;
  CHECK(tile() == std::vector<int>{32, 32});
  p.m = 1;
  CHECK(tile() == std::vector<int>{16, 32});
  p.num_batches = 128;
  CHECK(tile() == std::vector<int>{16, 128});
  // Groups of columns stay together, though it takes fewer multiprocessors.
  p.num_batches = 16;
  p.m = 64;
  CHECK(few_rows_tile(p, 132, {64}).columns == 64);
  CHECK(few_rows_tile(p, 132, {128}).columns == 128);
  CHECK(few_rows_tile(p, 132, {16}).columns == 32);
  CHECK(few_rows_tile(p, 132, {16, true}).columns == 64);
}

}  // namespace attnbench::cuda
