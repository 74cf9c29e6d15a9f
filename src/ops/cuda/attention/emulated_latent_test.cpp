// The kernels of MLA latents on emulated threads: their own code, with the constants, maps and
// grids that their launchers give them, against the CPU operations.
#include <doctest/doctest.h>

#include <algorithm>

#include "ops/cuda/testing/emulated_latent_testing.h"

#include "kernels/attention/latent/gathered.cuh"
#include "kernels/attention/latent/latent.cuh"
#include "ops/cuda/attention/emulated_latent_launch_testing.h"

namespace attnbench::cuda {
namespace {

template <attn::Element kElementOf, attn::Element kOutputOf, int kBlock, int kBox,
          bool kIsFew = false>
struct LatentConfig {
  static constexpr attn::Element kElement = kElementOf;
  static constexpr attn::Element kOutput = kOutputOf;
  static constexpr int kBlockSize = kBlock;
  static constexpr int kQueryBox = kBox;
  static constexpr unsigned long long kPolicy = attn::kEvictNormal;
  static constexpr bool kFew = kIsFew;
};

template <attn::Element kElementOf, attn::Element kQueryOf, attn::Element kOutputOf,
          attn::MlaEntry kFormatOf, bool kIsListed, int kBox, bool kIsRounded = false,
          bool kIsFew = false, bool kIsPaired = false>
struct GatheredConfig {
  static constexpr attn::Element kElement = kElementOf;
  static constexpr attn::Element kQuery = kQueryOf;
  static constexpr attn::Element kOutput = kOutputOf;
  static constexpr attn::MlaEntry kFormat = kFormatOf;
  static constexpr bool kListed = kIsListed;
  static constexpr bool kRounded = kIsRounded;
  static constexpr int kQueryBox = kBox;
  static constexpr bool kByPieces = attn::is_copied(kFormat) && kBox != 0;
  static constexpr bool kFences = true;
  static constexpr bool kFew = kIsFew;
  static constexpr bool kPaired = kIsPaired;
};

template <class Config>
class LatentLauncher final : public EmulatedLauncher {
 public:
  using EmulatedLauncher::EmulatedLauncher;
  void launch(const KernelSpec& spec, const LaunchShape& shape,
              const std::vector<KernelArgument>& arguments) override {
    check_launch(target(), spec, shape, arguments);
    CHECK(constant(spec, "int kBlockSize") == std::to_string(Config::kBlockSize));
    CHECK(constant(spec, "int kQueryBox") == std::to_string(Config::kQueryBox));
    CHECK(constant(spec, "bool kFew") == spec_flag(Config::kFew));
    const attn::TensorMap query_map = emulated_map(*arguments[arguments.size() - 2].map);
    const attn::TensorMap key_map = emulated_map(*arguments.back().map);
    const auto& params = argument<attn::AttendParams>(arguments[0]);
    run_grid(shape, attn::kLatentEnd, [&] {
      if (spec.function == "attn::latent") {
        attn::latent<Config>(params, query_map, key_map);
      } else if (spec.function == "attn::latent_splits") {
        attn::latent_splits<Config>(params, argument<attn::SplitParams>(arguments[1]), query_map,
                                    key_map);
      } else {
        attn::latent_plan<Config>(params, argument<attn::PlanParams>(arguments[1]), query_map,
                                  key_map);
      }
    });
  }
};

template <class Config>
class GatheredLauncher final : public EmulatedLauncher {
 public:
  using EmulatedLauncher::EmulatedLauncher;
  void launch(const KernelSpec& spec, const LaunchShape& shape,
              const std::vector<KernelArgument>& arguments) override {
    check_launch(target(), spec, shape, arguments);
    CHECK(constant(spec, "int kQueryBox") == std::to_string(Config::kQueryBox));
    CHECK(constant(spec, "bool kListed") == spec_flag(Config::kListed));
    CHECK(constant(spec, "bool kRounded") == spec_flag(Config::kRounded));
    CHECK(constant(spec, "bool kFew") == spec_flag(Config::kFew));
    CHECK(constant(spec, "bool kPaired") == spec_flag(Config::kPaired));
    CHECK(constant(spec, "attn::Element kElement") == spec_name(Config::kElement));
    CHECK(constant(spec, "attn::Element kQuery") == spec_name(Config::kQuery));
    const attn::TensorMap map = emulated_map(*arguments.back().map);
    const auto& p = argument<attn::AttendParams>(arguments[0]);
    const auto run = [&](const auto& work) { run_grid(shape, attn::kGatheredEnd, work); };
    if constexpr (Config::kListed) {
      const auto& sparse = argument<attn::SparseParams>(arguments[1]);
      if (spec.function == "attn::gathered_sparse") {
        return run([&] { attn::gathered_sparse<Config>(p, sparse, map); });
      }
      const auto& plan = argument<attn::PlanParams>(arguments[2]);
      run([&] { attn::gathered_sparse_plan<Config>(p, sparse, plan, map); });
    } else if (spec.function == "attn::gathered") {
      run([&] { attn::gathered<Config>(p, map); });
    } else if (spec.function == "attn::gathered_splits") {
      const auto& split = argument<attn::SplitParams>(arguments[1]);
      run([&] { attn::gathered_splits<Config>(p, split, map); });
    } else {
      const auto& plan = argument<attn::PlanParams>(arguments[1]);
      run([&] { attn::gathered_plan<Config>(p, plan, map); });
    }
  }
};

/// `num_sms`: few, so that a CTA has several items.
template <class Config>
void check(const LatentCase& c, int num_sms = 2) {
  CAPTURE(c.name);
  const std::unique_ptr<Ops> cpu = make_cpu_ops(1);
  LatentLauncher<Config> launcher(num_sms);
  if (!Config::kFew) launcher.force_kernel("hopper_latent:few=0");
  CandidateOps emulated(*cpu, kLatentCandidate, launcher);
  const std::vector<Tensor> expected = run_latent_attend(*cpu, c);
  check_same(run_latent_attend(emulated, c), expected, tolerance_of(c.element == Dtype::kF16));
  CHECK(launcher.num_ctas > 0);
}

template <class Config>
void check_gathered(const std::string& name, int num_sms = 2) {
  CAPTURE(name);
  const GatheredCase c = gathered_case(name);
  const std::unique_ptr<Ops> cpu = make_cpu_ops(1);
  GatheredLauncher<Config> launcher(num_sms);
  if (Config::kPaired) launcher.force_kernel("hopper_gathered:pair=1");
  CandidateOps emulated(*cpu, kGatheredCandidate, launcher);
  const std::vector<Tensor> expected = run_gathered_attend(*cpu, c);
  check_same(run_gathered_attend(emulated, c), expected,
             tolerance_of(Config::kElement == attn::Element::kF16));
  CHECK(launcher.num_ctas > 0);
}

const LatentCase& named(const std::string& name) {
  static const std::vector<LatentCase> cases = latent_cases();
  const auto found =
      std::ranges::find_if(cases, [&](const LatentCase& c) { return c.name == name; });
  REQUIRE(found != cases.end());
  return *found;
}

using enum attn::Element;
using Plain = LatentConfig<kBF16, kBF16, 64, 16>;
using Few = LatentConfig<kBF16, kBF16, 64, 16, true>;

}  // namespace

TEST_CASE("latents by emulated threads: tails, odd tiles and rows without keys") {
  check<Plain>(named("latent bf16, a half-empty tile"));
  check<Plain>(named("latent bf16, odd tiles, no keys"), 1);
  check<Plain>(named("latent bf16, one key outweighs the others"));
  check<Plain>(named("latent bf16, NaN in a value that earlier tokens do not see"));
}

TEST_CASE("latents by emulated threads, few rows") {
  check<Few>(named("latent bf16, a half-empty tile"));
  check<Few>(named("latent bf16, odd tiles, no keys"), 1);
  check<Few>(named("latent bf16, one key outweighs the others"));
}

TEST_CASE("latents by emulated threads, few rows: plans") {
  check<Few>(named("latent bf16 plan, few rows, no keys, a request without a query"));
  check<LatentConfig<kF16, kF32, 128, 8, true>>(
      named("latent f16 plan to f32, few rows, two tokens of 8 heads, blocks of 128, NaN"));
  check<LatentConfig<kBF16, kBF16, 16, 0, true>>(
      named("latent bf16 plan, few rows, copied queries of 5 heads, blocks of 16"));
}

TEST_CASE("latents by emulated threads: splits and plans") {
  check<LatentConfig<kF16, kF16, 64, 64>>(named("latent f16 splits, 64 heads of two tokens"), 3);
  check<LatentConfig<kBF16, kBF16, 64, 64>>(named("latent bf16 plan, 128 heads"));
  check<LatentConfig<kBF16, kBF16, 16, 16>>(
      named("latent bf16 plan, blocks of 16, four tokens of 16 heads"));
}

TEST_CASE("latents by emulated threads: sizes of blocks and ways to load the query") {
  check<LatentConfig<kBF16, kBF16, 32, 8>>(named("latent bf16, blocks of 32, 40 heads"));
  check<LatentConfig<kF16, kF32, 128, 8>>(named("latent f16 to f32, blocks of 128, 8 heads"));
  check<LatentConfig<kBF16, kBF16, 64, 0>>(named("latent bf16 splits, copied queries of 5 heads"),
                                           4);
  check<LatentConfig<kBF16, kBF16, 64, 0>>(named("latent bf16, queries in strides"));
}

TEST_CASE("listed entries by emulated threads: holes, doubles, short lists and several tokens") {
  using enum attn::MlaEntry;
  check_gathered<GatheredConfig<kBF16, kBF16, kBF16, kCopy, true, 16, false, true>>(
      "listed bf16, lists of every length", 3);
  check_gathered<GatheredConfig<kBF16, kBF16, kBF16, kCopy, true, 8>>("listed bf16, 24 heads");
  check_gathered<GatheredConfig<kF16, kF16, kF32, kCopy, true, 32>>(
      "listed f16 to f32, 96 heads, blocks of 5", 1);
  check_gathered<GatheredConfig<kBF16, kBF16, kBF16, kCopy, true, 0, false, true>>(
      "listed bf16 plan, copied queries of 5 heads");
}

TEST_CASE("listed entries of codes by emulated threads") {
  using enum attn::MlaEntry;
  check_gathered<GatheredConfig<kBF16, kBF16, kBF16, kDsMla, true, 16, false, true>>(
      "listed fp8_ds_mla");
  check_gathered<GatheredConfig<kBF16, kBF16, kBF16, kDsMla, true, 64>>(
      "listed fp8_ds_mla plan, 128 heads of two tokens");
  check_gathered<GatheredConfig<kBF16, kBF16, kBF16, attn::MlaEntry::kE4M3, true, 32>>(
      "listed e4m3, 32 heads");
}

TEST_CASE("entries of codes by emulated threads, in pairs of CTAs") {
  using enum attn::MlaEntry;
  check_gathered<GatheredConfig<kBF16, kBF16, kBF16, kDsMla, true, 64, false, false, true>>(
      "listed fp8_ds_mla plan, 128 heads of two tokens");
  check_gathered<GatheredConfig<kBF16, kBF16, kBF16, kDsMla, true, 32, false, false, true>>(
      "listed fp8_ds_mla, 96 heads", 3);
  check_gathered<
      GatheredConfig<kBF16, kBF16, kBF16, attn::MlaEntry::kE4M3, true, 0, false, false, true>>(
      "listed e4m3, copied queries of 100 heads");
  check_gathered<
      GatheredConfig<kBF16, kBF16, kBF16, attn::MlaEntry::kE4M3, false, 64, false, false, true>>(
      "e4m3 entries, one token of 128 heads, splits, NaN", 4);
  check_gathered<GatheredConfig<kF16, attn::Element::kE4M3, kBF16, attn::MlaEntry::kE4M3, false, 0,
                                false, false, true>>(
      "e4m3 entries and queries, one token of 96 heads, plan");
}

TEST_CASE("entries of e4m3 in blocks by emulated threads") {
  constexpr attn::MlaEntry kCodes = attn::MlaEntry::kE4M3;
  check_gathered<GatheredConfig<kBF16, kBF16, kBF16, kCodes, false, 16>>(
      "e4m3 entries, bf16 queries, odd tiles, no keys", 1);
  check_gathered<GatheredConfig<kF16, kE4M3, kBF16, kCodes, false, 0>>(
      "e4m3 entries and queries, plan, blocks of 16");
  check_gathered<GatheredConfig<kF16, kF16, kF16, kCodes, false, 64, true>>(
      "e4m3 entries rounded to f16, splits, 64 heads, blocks of 7");
  check_gathered<GatheredConfig<kBF16, kBF16, kBF16, kCodes, false, 16>>(
      "e4m3 entries, NaN in a value that earlier tokens do not see");
}

TEST_CASE("entries of e4m3 in blocks by emulated threads, few rows") {
  constexpr attn::MlaEntry kCodes = attn::MlaEntry::kE4M3;
  check_gathered<GatheredConfig<kF16, kE4M3, kBF16, kCodes, false, 0, false, true>>(
      "e4m3 entries and queries, one token, odd tiles, no keys", 1);
  check_gathered<GatheredConfig<kBF16, kBF16, kF32, kCodes, false, 8, false, true>>(
      "e4m3 entries, splits to f32, two tokens of 8 heads, NaN");
  check_gathered<GatheredConfig<kF16, kE4M3, kF16, kCodes, false, 0, false, true>>(
      "e4m3 entries and queries, plan, one token");
  check_gathered<GatheredConfig<kBF16, kBF16, kBF16, kCodes, false, 16, false, true>>(
      "e4m3 entries, one key outweighs the others");
}

}  // namespace attnbench::cuda
