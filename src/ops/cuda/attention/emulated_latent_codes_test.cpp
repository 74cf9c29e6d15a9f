// Attention over latents in e4m3 on emulated threads, as in emulated_latent_test.cpp. These are in
// test_races too (CMakeLists.txt).
#include <doctest/doctest.h>

#include "ops/cuda/testing/emulated_latent_testing.h"

#include "kernels/attention/latent/latent_codes.cuh"
#include "ops/cuda/attention/emulated_latent_launch_testing.h"

namespace attnbench::cuda {
namespace {

template <attn::Element kOutputOf, int kBlock, int kRowsOf, bool kE4M3 = false>
struct CodesConfig {
  static constexpr attn::Element kOutput = kOutputOf;
  static constexpr int kBlockSize = kBlock;
  static constexpr int kRows = kRowsOf;
  static constexpr bool kE4M3Probability = kE4M3;
};

template <class Config>
class CodesLauncher final : public EmulatedLauncher {
 public:
  using EmulatedLauncher::EmulatedLauncher;
  void launch(const KernelSpec& spec, const LaunchShape& shape,
              const std::vector<KernelArgument>& arguments) override {
    check_launch(target(), spec, shape, arguments);
    CHECK(constant(spec, "attn::Element kOutput") == spec_name(Config::kOutput));
    CHECK(constant(spec, "int kBlockSize") == std::to_string(Config::kBlockSize));
    CHECK(constant(spec, "int kRows") == std::to_string(Config::kRows));
    CHECK(constant(spec, "bool kE4M3Probability") == spec_flag(Config::kE4M3Probability));
    const attn::TensorMap map = emulated_map(*arguments.back().map);
    const auto& p = argument<attn::AttendParams>(arguments[0]);
    run_grid(shape, attn::CodesPlaces<Config::kRows>::kEnd, [&] {
      if (spec.function == "attn::latent_codes") {
        attn::latent_codes<Config>(p, map);
      } else if (spec.function == "attn::latent_codes_splits") {
        attn::latent_codes_splits<Config>(p, argument<attn::SplitParams>(arguments[1]), map);
      } else {
        attn::latent_codes_plan<Config>(p, argument<attn::PlanParams>(arguments[1]), map);
      }
    });
  }
};

/// `spread`: scores are that many times as far apart.
template <class Config>
void check_codes(const std::string& name, int num_sms = 2, float spread = 1.0f) {
  CAPTURE(name);
  GatheredCase of_name = gathered_case(name);
  of_name.of.softmax_scale *= spread;
  const GatheredCase c = Config::kE4M3Probability ? with_e4m3_probability(of_name) : of_name;
  const std::unique_ptr<Ops> cpu = make_cpu_ops(1);
  CodesLauncher<Config> launcher(num_sms);
  CandidateOps emulated(*cpu, kLatentCodesCandidate, launcher);
  const std::vector<Tensor> expected = run_gathered_attend(*cpu, c);
  const std::vector<Tensor> actual = run_gathered_attend(emulated, c);
  if (Config::kE4M3Probability) {
    check_same(actual, expected, kKnownTolerance, 0);
  } else {
    check_same(actual, expected, tolerance_of(true));
  }
  CHECK(launcher.num_ctas > 0);
}

using enum attn::Element;

}  // namespace

TEST_CASE("latents in e4m3 of few rows by emulated threads") {
  check_codes<CodesConfig<kBF16, 64, 16>>("e4m3 entries and queries, one token, odd tiles, no keys",
                                          1);
  check_codes<CodesConfig<kF16, 64, 16>>("e4m3 entries and queries, plan, one token");
  check_codes<CodesConfig<kBF16, 64, 16>>("e4m3 entries and queries, one token, many tiles", 1);
  check_codes<CodesConfig<kF32, 64, 16>>(
      "e4m3 entries and queries, splits to f32, two tokens of 8 heads, NaN", 3);
  check_codes<CodesConfig<kBF16, 32, 16>>("e4m3 entries and queries, one key outweighs the others");
  check_codes<CodesConfig<kBF16, 64, 32>>(
      "e4m3 entries and queries, two tokens of 16 heads, many tiles");
}

TEST_CASE("latents in e4m3 of many rows by emulated threads") {
  check_codes<CodesConfig<kBF16, 64, 64>>(
      "e4m3 entries and queries, three tokens of 40 heads, splits, NaN", 3);
  check_codes<CodesConfig<kF32, 128, 64>>(
      "e4m3 entries and queries, 64 heads, odd tiles, blocks of 128", 1);
  check_codes<CodesConfig<kBF16, 64, 64>>("e4m3 entries and queries, one token of 96 heads, plan");
  check_codes<CodesConfig<kBF16, 16, 64>>("e4m3 entries and queries, plan, blocks of 16");
  // Maxima that grow by more than weights may be larger than 1, and by less.
  check_codes<CodesConfig<kF32, 128, 64>>(
      "e4m3 entries and queries, 64 heads, odd tiles, blocks of 128", 1, 8.0f);
  check_codes<CodesConfig<kBF16, 64, 64>>(
      "e4m3 entries and queries, three tokens of 40 heads, splits, NaN", 3, 3.0f);
}

TEST_CASE("latents in e4m3 of many rows with e4m3 probabilities by emulated threads") {
  check_codes<CodesConfig<kBF16, 64, 64, true>>(
      "e4m3 entries and queries, three tokens of 40 heads, splits, NaN", 3);
  check_codes<CodesConfig<kF32, 128, 64, true>>(
      "e4m3 entries and queries, 64 heads, odd tiles, blocks of 128", 1);
  check_codes<CodesConfig<kBF16, 16, 64, true>>("e4m3 entries and queries, plan, blocks of 16");
}

// Not in test_races: threads meet where they do with P in 16 bits.
#ifndef ATTNBENCH_FIND_RACES
TEST_CASE("latents in e4m3 of few rows with e4m3 probabilities by emulated threads") {
  check_codes<CodesConfig<kBF16, 64, 16, true>>(
      "e4m3 entries and queries, one token, odd tiles, no keys", 1);
  check_codes<CodesConfig<kF16, 64, 16, true>>("e4m3 entries and queries, plan, one token");
  check_codes<CodesConfig<kF32, 64, 16, true>>(
      "e4m3 entries and queries, splits to f32, two tokens of 8 heads, NaN", 3);
  check_codes<CodesConfig<kBF16, 64, 32, true>>(
      "e4m3 entries and queries, two tokens of 16 heads, many tiles");
}
#endif

}  // namespace attnbench::cuda
