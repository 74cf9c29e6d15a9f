// The kernels of MLA latents on emulated threads: their own code, with the constants, maps and
// grids that their launchers give them, against the CPU operations.
#include <doctest/doctest.h>

#include <algorithm>
#include <cmath>
#include <functional>

#include "ops/cuda/testing/emulated_hopper_testing.h"

// Under other names, as there.
#define pin ptx_pin
#define num_ctas ptx_num_ctas
#define this_cta ptx_this_cta
#define this_thread ptx_this_thread
#define store_word ptx_store_word
#define store_words ptx_store_words
#define check_shared_base ptx_check_shared_base
#define multiply_scores ptx_multiply_scores
#define multiply_values ptx_multiply_values
#define multiply_few_scores ptx_multiply_few_scores
#define multiply_few_values ptx_multiply_few_values
#include "kernels/ptx/wgmma_latent.cuh"
#undef pin
#undef num_ctas
#undef this_cta
#undef this_thread
#undef store_word
#undef store_words
#undef check_shared_base
#undef multiply_scores
#undef multiply_values
#undef multiply_few_scores
#undef multiply_few_values

namespace attn {

template <class Registers>
void pin(Registers&) {}
inline int num_ctas() { return static_cast<int>(gridDim.x); }
inline int this_cta() { return static_cast<int>(blockIdx.x); }
inline int this_thread() { return static_cast<int>(threadIdx.x); }
inline void store_word(u32 address, u32 word) {
  std::memcpy(attnbench::cuda::running_cta->shared() + address, &word, sizeof word);
}
inline void store_words(u32 address, const u32 (&words)[4]) {
  if (address % 16 != 0) throw std::logic_error("a store off 16 bytes");
  std::memcpy(attnbench::cuda::running_cta->shared() + address, words, sizeof words);
}
inline void check_shared_base(u32) {}

/// One step of a product, for this thread's accumulators of 4 * blocks: `left(row, k)` and
/// `right(k, column)`.
template <class Left, class Right>
void add_step(float* sums, int blocks, bool adds, const Left& left, const Right& right) {
  const int thread = static_cast<int>(threadIdx.x % 128);
  for (int half = 0; half < 2; ++half) {
    const int row = thread / 32 * 16 + half * 8 + thread % 32 / 4;
    double of_row[16];
    for (int k = 0; k < 16; ++k) of_row[k] = left(row, k);
    for (int j = 0; j < blocks; ++j) {
      for (int i = 0; i < 2; ++i) {
        double sum = 0;
        for (int k = 0; k < 16; ++k) sum += of_row[k] * right(k, 8 * j + thread % 4 * 2 + i);
        float& to = sums[4 * j + 2 * half + i];
        to = static_cast<float>((adds ? double{to} : 0.0) + sum);
      }
    }
  }
}

/// Element (row, k) of a left operand that the lanes of a warp hold in registers.
template <Element kElement>
class HeldOperand {
 public:
  struct Words {
    u32 of[4];
  };
  explicit HeldOperand(const u32* mine)
      : lanes_(
            attnbench::cuda::running_cta->exchange(Words{{mine[0], mine[1], mine[2], mine[3]}})) {}
  double at(int row, int k) const {
    const auto lane = static_cast<std::size_t>(row % 8 * 4 + k % 8 / 2);
    const u32 word = lanes_[lane].of[k / 8 * 2 + row % 16 / 8];
    return attnbench::cuda::number_of<kElement>(static_cast<u16>(word >> k % 2 * 16));
  }

 private:
  std::array<Words, 32> lanes_;
};

template <Element kElement>
void queue_product(float* sums, int blocks, bool adds, u64 left, u64 right, bool across) {
  attnbench::cuda::running_hopper->products().open.push_back([=] {
    const attnbench::cuda::EmulatedOperand a(left);
    const attnbench::cuda::EmulatedOperand b(right);
    add_step(
        sums, blocks, adds,
        [&](int row, int k) {
          return attnbench::cuda::number_of<kElement>(a.template along<u16>(row, k));
        },
        [&](int k, int column) {
          return attnbench::cuda::number_of<kElement>(across ? b.template across<u16>(k, column)
                                                             : b.template along<u16>(column, k));
        });
  });
}
template <Element kElement>
void queue_product(float* sums, int blocks, bool adds, const u32* left, u64 right, bool across) {
  attnbench::cuda::running_hopper->products().open.push_back([=] {
    const HeldOperand<kElement> a(left);
    const attnbench::cuda::EmulatedOperand b(right);
    add_step(
        sums, blocks, adds, [&](int row, int k) { return a.at(row, k); },
        [&](int k, int column) {
          return attnbench::cuda::number_of<kElement>(across ? b.template across<u16>(k, column)
                                                             : b.template along<u16>(column, k));
        });
  });
}
template <Element kElement>
void multiply_scores(float (&sums)[32], u64 left, u64 right, bool adds) {
  queue_product<kElement>(sums, 8, adds, left, right, false);
}
template <Element kElement>
void multiply_scores(float (&sums)[32], const u32 (&left)[4], u64 right, bool adds) {
  queue_product<kElement>(sums, 8, adds, left, right, false);
}
template <Element kElement>
void multiply_values(float (&sums)[128], u64 left, u64 right) {
  queue_product<kElement>(sums, 32, true, left, right, true);
}
template <Element kElement>
void multiply_values(float (&sums)[128], const u32 (&left)[4], u64 right) {
  queue_product<kElement>(sums, 32, true, left, right, true);
}

template <Element kElement>
void multiply_few_scores(float (&sums)[8], u64 left, u64 right, bool adds) {
  queue_product<kElement>(sums, 2, adds, left, right, false);
}
template <Element kElement>
void multiply_few_values(float (&sums)[8], u64 left, u64 right) {
  float* const to = sums;
  attnbench::cuda::running_hopper->products().open.push_back([=] {
    const attnbench::cuda::EmulatedOperand a(left);
    const attnbench::cuda::EmulatedOperand b(right);
    add_step(
        to, 2, true,
        [&](int row, int k) {
          return attnbench::cuda::number_of<kElement>(a.template across<u16>(k, row));
        },
        [&](int k, int column) {
          return attnbench::cuda::number_of<kElement>(b.template along<u16>(column, k));
        });
  });
}

}  // namespace attn

#include "kernels/attention/hopper/gathered.cuh"
#include "ops/cuda/attention/attend_latent_cases_testing.h"
#include "ops/cuda/attention/candidates.h"
#include "ops/cuda/vector_choice.h"
#include "ops/forwarding_ops.h"

namespace attnbench::cuda {
namespace {

template <attn::Element kElementOf, attn::Element kOutputOf, int kBlock, int kBox>
struct LatentConfig {
  static constexpr attn::Element kElement = kElementOf;
  static constexpr attn::Element kOutput = kOutputOf;
  static constexpr int kBlockSize = kBlock;
  static constexpr int kQueryBox = kBox;
  static constexpr unsigned long long kPolicy = attn::kEvictNormal;
};

template <attn::Element kElementOf, attn::Element kQueryOf, attn::Element kOutputOf,
          attn::MlaEntry kFormatOf, bool kIsListed, int kBox, bool kIsRounded = false,
          bool kIsFew = false>
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
};

/// A kernel's parameter, and the constant of a spec.
template <class T>
const T& argument(const KernelArgument& of) {
  return *static_cast<const T*>(of.bytes);
}
std::string constant(const KernelSpec& spec, const std::string& name) {
  for (const auto& [of, value] : spec.constants) {
    if (of == name) return value;
  }
  return "";
}
/// What shared memory held before is NaN.
void run_cta(std::size_t shared_end, const std::function<void()>& work) {
  EmulatedCta cta(attn::kLatentThreads, shared_end);
  EmulatedHopper hopper;
  running_hopper = &hopper;
  std::memset(cta.shared(), 0xFF, shared_end);
  cta.run(work);
  CHECK_FALSE(hopper.has_open_work());
}

/// Runs what the candidate launches on emulated CTAs, no more than `most_ctas` of a grid that may
/// have any number.
template <class Config>
class EmulatedLauncher final : public Launcher {
 public:
  explicit EmulatedLauncher(int num_sms) { target_.num_sms = num_sms; }
  const Target& target() const override { return target_; }

  void launch(const KernelSpec& spec, const LaunchShape& shape,
              const std::vector<KernelArgument>& arguments) override {
    check_launch(target_, spec, shape, arguments);
    CHECK(constant(spec, "int kBlockSize") == std::to_string(Config::kBlockSize));
    CHECK(constant(spec, "int kQueryBox") == std::to_string(Config::kQueryBox));
    CHECK(shape.threads == attn::kLatentThreads);
    CHECK(shape.shared_bytes == attn::kLatentEnd - attn::kLatentBase);
    const attn::TensorMap query_map = emulated_map(*arguments[arguments.size() - 2].map);
    const attn::TensorMap key_map = emulated_map(*arguments.back().map);
    const auto& params = argument<attn::AttendParams>(arguments[0]);
    gridDim.x = static_cast<unsigned>(shape.grid_x);
    for (blockIdx.x = 0; blockIdx.x < gridDim.x; ++blockIdx.x) {
      ++num_ctas;
      run_cta(attn::kLatentEnd, [&] {
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
  }
  int num_ctas = 0;

 private:
  Target target_ = target_of_sm(90);
};

/// Attention by the candidate, everything else by the CPU.
template <class Config>
class EmulatedLatentOps final : public ForwardingOps {
 public:
  EmulatedLatentOps(Ops& cpu, int num_sms) : ForwardingOps(cpu), launcher_(num_sms) {}
  void attend(const attn::AttendParams& params) override {
    run({AttendOperation::kWhole, &params});
  }
  void attend_splits(const attn::AttendParams& params, const attn::SplitParams& split) override {
    run({.operation = AttendOperation::kSplits, .params = &params, .split = &split});
  }
  void attend_plan(const attn::AttendParams& params, const attn::PlanParams& plan) override {
    run({.operation = AttendOperation::kPlan, .params = &params, .plan = &plan});
  }
  int num_ctas() const { return launcher_.num_ctas; }

 private:
  void run(const AttendCall& call) {
    REQUIRE(kLatentCandidate.misfit(launcher_.target(), call) == "");
    kLatentCandidate.launch(launcher_, call);
  }
  EmulatedLauncher<Config> launcher_;
};

/// The same of the kernel that gathers.
template <class Config>
class GatheredLauncher final : public Launcher {
 public:
  explicit GatheredLauncher(int num_sms) { target_.num_sms = num_sms; }
  const Target& target() const override { return target_; }

  void launch(const KernelSpec& spec, const LaunchShape& shape,
              const std::vector<KernelArgument>& arguments) override {
    check_launch(target_, spec, shape, arguments);
    CHECK(constant(spec, "int kQueryBox") == std::to_string(Config::kQueryBox));
    CHECK(constant(spec, "bool kListed") == (Config::kListed ? "true" : "false"));
    CHECK(constant(spec, "bool kRounded") == (Config::kRounded ? "true" : "false"));
    CHECK(constant(spec, "bool kFew") == (Config::kFew ? "true" : "false"));
    CHECK(constant(spec, "attn::Element kElement") == spec_name(Config::kElement));
    CHECK(constant(spec, "attn::Element kQuery") == spec_name(Config::kQuery));
    CHECK(shape.shared_bytes == attn::kGatheredEnd - attn::kLatentBase);
    const attn::TensorMap map = emulated_map(*arguments.back().map);
    const auto& p = argument<attn::AttendParams>(arguments[0]);
    const auto run = [&](const auto& work) {
      gridDim.x = static_cast<unsigned>(shape.grid_x);
      for (blockIdx.x = 0; blockIdx.x < gridDim.x; ++blockIdx.x) {
        ++num_ctas;
        run_cta(attn::kGatheredEnd, work);
      }
    };
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
  int num_ctas = 0;

 private:
  Target target_ = target_of_sm(90);
};

template <class Config>
class EmulatedGatheredOps final : public ForwardingOps {
 public:
  EmulatedGatheredOps(Ops& cpu, int num_sms) : ForwardingOps(cpu), launcher_(num_sms) {}
  void attend(const attn::AttendParams& params) override {
    run({AttendOperation::kWhole, &params});
  }
  void attend_splits(const attn::AttendParams& params, const attn::SplitParams& split) override {
    run({.operation = AttendOperation::kSplits, .params = &params, .split = &split});
  }
  void attend_plan(const attn::AttendParams& params, const attn::PlanParams& plan) override {
    run({.operation = AttendOperation::kPlan, .params = &params, .plan = &plan});
  }
  void attend_sparse(const attn::AttendParams& params, const attn::SparseParams& sparse) override {
    run({.operation = AttendOperation::kSparse, .params = &params, .sparse = &sparse});
  }
  void attend_sparse_plan(const attn::AttendParams& params, const attn::SparseParams& sparse,
                          const attn::PlanParams& plan) override {
    run({.operation = AttendOperation::kSparsePlan,
         .params = &params,
         .plan = &plan,
         .sparse = &sparse});
  }
  int num_ctas() const { return launcher_.num_ctas; }

 private:
  void run(const AttendCall& call) {
    REQUIRE(kGatheredCandidate.misfit(launcher_.target(), call) == "");
    kGatheredCandidate.launch(launcher_, call);
  }
  GatheredLauncher<Config> launcher_;
};

bool close_enough(double a, double b, double tolerance) {
  if (std::isnan(a) || std::isnan(b)) return std::isnan(a) && std::isnan(b);
  if (std::isinf(a) || std::isinf(b)) return a == b;
  return std::fabs(a - b) <= tolerance / 2 + tolerance * (1e-2 + std::fabs(b));
}

/// What a case gives by the kernel is what it gives on the CPU. As on a GPU: P is rounded to 16
/// bits, and so is the output.
void check_results(const std::vector<Tensor>& actual, const std::vector<Tensor>& expected,
                   double tolerance) {
  REQUIRE(actual.size() == expected.size());
  for (std::size_t i = 0; i < expected.size(); ++i) {
    CAPTURE(i);
    std::int64_t wrong = 0;
    std::int64_t first = -1;
    for (std::int64_t j = 0; j < expected[i].num_elements(); ++j) {
      if (close_enough(double{actual[i].at(j)}, double{expected[i].at(j)}, tolerance)) continue;
      if (first < 0) first = j;
      ++wrong;
    }
    CAPTURE(first);
    CHECK(wrong == 0);
  }
}

/// `num_sms`: few, so that a CTA has several items.
template <class Config>
void check(const LatentCase& c, int num_sms = 2) {
  CAPTURE(c.name);
  const std::unique_ptr<Ops> cpu = make_cpu_ops(1);
  EmulatedLatentOps<Config> emulated(*cpu, num_sms);
  const std::vector<Tensor> expected = run_latent_attend(*cpu, c);
  check_results(run_latent_attend(emulated, c), expected, c.element == Dtype::kF16 ? 1e-2 : 4e-2);
  CHECK(emulated.num_ctas() > 0);
}

template <class Config>
void check_gathered(const std::string& name, int num_sms = 2) {
  CAPTURE(name);
  const std::vector<GatheredCase> cases = gathered_cases();
  const auto c = std::ranges::find_if(cases, [&](const auto& any) { return any.of.name == name; });
  REQUIRE(c != cases.end());
  const std::unique_ptr<Ops> cpu = make_cpu_ops(1);
  EmulatedGatheredOps<Config> emulated(*cpu, num_sms);
  const std::vector<Tensor> expected = run_gathered_attend(*cpu, *c);
  check_results(run_gathered_attend(emulated, *c), expected,
                Config::kElement == attn::Element::kF16 ? 1e-2 : 4e-2);
  CHECK(emulated.num_ctas() > 0);
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

}  // namespace

TEST_CASE("latents by emulated threads: tails, odd tiles and rows without keys") {
  check<Plain>(named("latent bf16, a half-empty tile"));
  check<Plain>(named("latent bf16, odd tiles, no keys"), 1);
  check<Plain>(named("latent bf16, one key outweighs the others"));
  check<Plain>(named("latent bf16, NaN in a value that earlier tokens do not see"));
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
