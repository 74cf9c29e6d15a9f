// The encoder's scales and codes in one launch each, and counts of patterns, on emulated threads:
// the kernels' own code, whose bytes must be those of the CPU operations. What is shared between
// the threads of a CTA is static here, since one CTA runs at a time.
#include <doctest/doctest.h>

#include <cmath>
#include <cstdint>
#include <memory>
#include <utility>
#include <vector>

#include "ops/cuda/testing/emulated_cta_testing.h"

inline float __fmul_rn(float a, float b) { return a * b; }
inline float __fadd_rn(float a, float b) { return a + b; }
inline float __fdiv_rn(float a, float b) { return a / b; }
template <typename T>
T __reduce_add_sync(unsigned, T mine) {
  return attnbench::cuda::running_cta == nullptr ? mine : [&] {
    T sum{};
    for (const T& of : attnbench::cuda::running_cta->exchange(mine)) sum += of;
    return sum;
  }();
}
template <typename T>
T atomicAdd(T* target, T value) {
  return std::exchange(*target, *target + value);
}
inline int atomicMax(int* target, int value) {
  return std::exchange(*target, *target > value ? *target : value);
}
inline unsigned atomicMin(unsigned* target, unsigned value) {
  return std::exchange(*target, *target < value ? *target : value);
}
namespace attn {
template <int kCount>
void divide_for_codes(float (&values)[kCount], float divisor) {
  for (float& value : values) value /= divisor;
}
unsigned pattern_counts[1 << 15];  // the kernel's dynamic shared memory
}  // namespace attn

// Device code comes behind what stands in for CUDA's keywords.
#include "kernels/quantise/patterns.cuh"
#undef __shared__
#define __shared__ static
#include "kernels/quantise/encoder.cuh"
#include "ops/cuda/quantise/quantise_cases_testing.h"
#include "ops/forwarding_ops.h"

namespace attnbench::cuda {
namespace {

template <typename Kernel>
void run_grid(unsigned grid_x, unsigned grid_y, int threads, Kernel kernel) {
  gridDim.x = grid_x;
  gridDim.y = grid_y;
  for (unsigned y = 0; y < grid_y; ++y) {
    for (unsigned x = 0; x < grid_x; ++x) {
      EmulatedCta cta(threads, 16);
      cta.run([&] {
        blockIdx.x = x;
        blockIdx.y = y;
        kernel();
      });
    }
  }
}

/// Of four query heads; heads of kHeadSize columns in loads of kElements.
template <attn::Element kOf, int kHeadSize, int kElements, int kKvHeads, bool kLargest>
struct ScalesConfig {
  static constexpr attn::Element kElement = kOf;
  static constexpr int kVector = kElements;
  static constexpr int kItems = 2;
  static constexpr int kHeadPieces = kHeadSize / kElements;
  static constexpr int kRowPieces = 4 * kHeadPieces;
  static constexpr int kOtherRowPieces = kKvHeads * kHeadPieces;
  static constexpr bool kSigned = kLargest;
  static constexpr int kThreads = 96;
};
template <attn::Element kOf, int kPadded, int kElements, int kKvHeads>
struct CodesConfig {
  static constexpr attn::Element kSource = kOf;
  static constexpr int kVector = kElements;
  static constexpr int kCodes = 8;
  static constexpr int kItems = 2;
  static constexpr int kHeadPieces = kPadded / kCodes;
  static constexpr int kRowPieces = 4 * kHeadPieces;
  static constexpr int kOtherRowPieces = kKvHeads * kHeadPieces;
  static constexpr int kThreads = 64;
};
template <int kElements, int kWidth>
struct PatternsConfig {
  static constexpr int kVector = kElements;
  static constexpr int kHeadPieces = kWidth / kElements;
  static constexpr int kThreads = 64;
};

/// The operations of the cases below by kernels, everything else by the CPU.
class EmulatedEncoderOps final : public ForwardingOps {
 public:
  using ForwardingOps::ForwardingOps;

  void encoder_scales(const attn::EncoderScalesParams& p) override {
    using attn::Element;
    if (p.element == Element::kBF16 && p.head_size == 72)
      return run_scales<Element::kBF16, 72, 8, 4>(p);
    if (p.element == Element::kBF16 && p.head_size == 80)
      return run_scales<Element::kBF16, 80, 8, 2>(p);
    if (p.element == Element::kF32) return run_scales<Element::kF32, 40, 4, 4>(p);
    inner().encoder_scales(p);
  }
  void quantise_encoder(const attn::EncoderQuantiseParams& p) override {
    using attn::Element;
    const Element element = p.source_element;
    if (element == Element::kBF16 && p.head_size == 72)
      return run_codes<Element::kBF16, 80, 8, 4>(p);
    if (element == Element::kBF16 && p.head_size == 80)
      return run_codes<Element::kBF16, 80, 8, 2>(p);
    if (element == Element::kF32) return run_codes<Element::kF32, 48, 4, 4>(p);
    inner().quantise_encoder(p);
  }
  void count_patterns(const attn::PatternCountParams& p) override {
    ++num_kernels;
    run_grid(2, static_cast<unsigned>(p.num_heads), 64, [&] {
      if (p.head_size == 8) {
        attn::count_patterns<PatternsConfig<8, 8>>(p);
      } else {
        attn::count_patterns<PatternsConfig<4, 36>>(p);
      }
    });
  }
  int num_kernels = 0;

 private:
  template <attn::Element kOf, int kHeadSize, int kElements, int kKvHeads>
  void run_scales(const attn::EncoderScalesParams& p) {
    ++num_kernels;
    run_grid(3, 3, 96, [&] {
      if (p.is_signed != 0) {
        attn::encoder_scales<ScalesConfig<kOf, kHeadSize, kElements, kKvHeads, true>>(p);
      } else {
        attn::encoder_scales<ScalesConfig<kOf, kHeadSize, kElements, kKvHeads, false>>(p);
      }
    });
  }
  template <attn::Element kOf, int kPadded, int kElements, int kKvHeads>
  void run_codes(const attn::EncoderQuantiseParams& p) {
    ++num_kernels;
    using Config = CodesConfig<kOf, kPadded, kElements, kKvHeads>;
    const attn::i64 pieces = p.tensors[0].num_tokens * Config::kRowPieces;
    run_grid(static_cast<unsigned>((pieces + 127) / 128), 3, 64,
             [&] { attn::quantise_encoder<Config>(p); });
  }
};

}  // namespace

TEST_CASE("the encoder's launches and counts by emulated threads give what the CPU gives") {
  const std::unique_ptr<Ops> cpu = make_cpu_ops(1);
  EmulatedEncoderOps emulated(*cpu);
  int num_cases = 0;
  std::vector<OperationCase> cases;
  add_quantise_cases(cases);
  for (const OperationCase& c : cases) {
    if (!c.name.starts_with("encoder at once") && !c.name.starts_with("count_patterns")) continue;
    CAPTURE(c.name);
    const std::vector<Tensor> expected = c.run(*cpu);
    const std::vector<Tensor> actual = c.run(emulated);
    REQUIRE(actual.size() == expected.size());
    for (std::size_t i = 0; i < expected.size(); ++i) {
      CAPTURE(i);
      std::int64_t wrong = 0;
      for (std::int64_t j = 0; j < expected[i].num_elements(); ++j) {
        const double a = actual[i].at(j);
        const double b = expected[i].at(j);
        // NaN has many patterns.
        if (a != b && !(std::isnan(a) && std::isnan(b))) ++wrong;
      }
      CHECK(wrong == 0);
    }
    ++num_cases;
  }
  CHECK(num_cases == 6);
  CHECK(emulated.num_kernels == 3 * 4 + 2 * 2);
}

}  // namespace attnbench::cuda
