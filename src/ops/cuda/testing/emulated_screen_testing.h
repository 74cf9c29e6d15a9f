// Screening without a device: the host's plan and the device code of kernels/measure/screen*.cuh,
// CTA by CTA on emulated threads, with memory of the CPU's operations.
#pragma once

#include <string>
#include <vector>

#include "ops/cuda/testing/emulated_cta_testing.h"

#define multiply_add_double ptx_multiply_add_double
#include "kernels/ptx/mma_double.cuh"
#undef multiply_add_double

namespace attn {

/// One fma after the other, which is one order of the device's sums. The layout: mma_double.cuh.
template <int kTiles>
void multiply_add_double(double (&c)[kTiles][2], double a, const double (&b)[kTiles]) {
  struct Fragments {
    double a;
    const double* b;
  };
  const auto lanes = attnbench::cuda::running_cta->exchange(Fragments{a, b});
  const std::size_t lane = threadIdx.x % 32;
  for (int tile = 0; tile < kTiles; ++tile) {
    for (std::size_t i = 0; i < 2; ++i) {
      const std::size_t column = lane % 4 * 2 + i;
      for (std::size_t k = 0; k < 4; ++k) {
        c[tile][i] = std::fma(lanes[lane / 4 * 4 + k].a, lanes[column * 4 + k].b[tile], c[tile][i]);
      }
    }
  }
  __syncwarp();  // until then the others read b where it is
}

}  // namespace attn

#include "kernels/measure/screen.cuh"
#include "kernels/measure/screen_latent.cuh"
#include "kernels/measure/screen_rows.cuh"
#include "ops/cuda/launcher.h"
#include "ops/cuda/measure/screen.h"

namespace attnbench::cuda {

template <int kTileRows, int kTileColumns, bool kWrites, unsigned kSet>
struct EmulatedScreenConfig {
  static constexpr int kRows = kTileRows;
  static constexpr int kColumns = kTileColumns;
  static constexpr bool kWritesRows = kWrites;
  static constexpr unsigned kElements = kSet;
};

/// Runs launches of the screening kernels at once. Few multiprocessors, so that the keys of small
/// problems are split too.
class EmulatedScreenLauncher final : public Launcher {
 public:
  explicit EmulatedScreenLauncher(int num_sms = 1) { target_.num_sms = num_sms; }
  const Target& target() const override { return target_; }

  void launch(const KernelSpec& spec, const LaunchShape& shape,
              const std::vector<KernelArgument>& arguments) override {
    launched.push_back(spec);
    const void* const bytes = arguments.at(0).bytes;
    if (spec.source == "measure/screen_latent.cuh") return run_latent(spec, shape, bytes);
    if (spec.source == "measure/screen_rows.cuh") {
      const auto& params = *static_cast<const attn::ScreenRowsParams*>(bytes);
      return run_ctas(shape, 0, [&](void*) { attn::screen_compare_rows<NoConfig>(params); });
    }
    const auto& params = *static_cast<const attn::ScreenParams*>(bytes);
    const bool few_columns = constant(spec, "int kColumns") == "64";
    if (spec.function == "attn::screen_value_squares") {
      return few_columns ? run_squares<64>(shape, params) : run_squares<128>(shape, params);
    }
    const bool few_rows = constant(spec, "int kRows") == "16";
    if (few_rows && few_columns) return run_tiles<16, 64>(spec, shape, params);
    if (few_rows) return run_tiles<16, 128>(spec, shape, params);
    if (few_columns) return run_tiles<64, 64>(spec, shape, params);
    return run_tiles<64, 128>(spec, shape, params);
  }

  std::vector<KernelSpec> launched;

 private:
  struct NoConfig {};
  static constexpr unsigned kAll = attn::kScreenOperandElements;
  static constexpr unsigned kOnlyBF16 = attn::kScreenBit<attn::Element::kBF16>;

  static std::string constant(const KernelSpec& spec, const std::string& name) {
    for (const auto& [known, value] : spec.constants) {
      if (known == name) return value;
    }
    throw std::logic_error("a kernel without " + name);
  }

  /// body(shared memory) by each thread of each CTA.
  template <typename Body>
  void run_ctas(const LaunchShape& shape, std::size_t shared_bytes, const Body& body) {
    for (std::int64_t i = 0; i < shape.grid_x; ++i) {
      blockIdx.x = static_cast<unsigned>(i);
      EmulatedCta cta(shape.threads, shared_bytes);
      cta.run([&] { body(cta.shared()); });
    }
  }

  template <int kColumns>
  void run_squares(const LaunchShape& shape, const attn::ScreenParams& params) {
    run_ctas(shape, 0, [&](void*) {
      attn::screen_value_squares<EmulatedScreenConfig<16, kColumns, true, kAll>>(params);
    });
  }

  template <int kRows, int kColumns>
  void run_tiles(const KernelSpec& spec, const LaunchShape& shape,
                 const attn::ScreenParams& params) {
    const bool writes = constant(spec, "bool kWritesRows") == "true";
    if (spec.function == "attn::screen_attention") {
      const unsigned set = static_cast<unsigned>(std::stoul(constant(spec, "unsigned kElements")));
      for (const attn::ScreenOperand* const operand :
           {&params.query, &params.key, &params.query_rope, &params.key_rope, &params.value}) {
        if (operand->width > 0 && (set & screen_element_bit(operand->element)) == 0) {
          throw std::logic_error("an operand of a type that the kernel does not read");
        }
      }
      if (writes && set == kOnlyBF16) {
        return run<EmulatedScreenConfig<kRows, kColumns, true, kOnlyBF16>>(spec, shape, params);
      }
    }
    if (writes) return run<EmulatedScreenConfig<kRows, kColumns, true, kAll>>(spec, shape, params);
    run<EmulatedScreenConfig<kRows, kColumns, false, kAll>>(spec, shape, params);
  }

  template <class Config>
  void run(const KernelSpec& spec, const LaunchShape& shape, const attn::ScreenParams& params) {
    using Memory = attn::ScreenMemory<Config>;
    if (shape.shared_bytes != static_cast<int>(sizeof(Memory))) {
      throw std::logic_error("shared memory of another size than the kernel's");
    }
    run_ctas(shape, sizeof(Memory), [&](void* memory) {
      attn::ScreenCta<Config> screen(params, *static_cast<Memory*>(memory));
      if (spec.function == "attn::screen_merge") return screen.merge();
      screen.attend();
    });
  }

  void run_latent(const KernelSpec& spec, const LaunchShape& shape, const void* bytes) {
    using Memory = attn::ScreenProductMemory;
    if (spec.function != "attn::screen_product") {
      const auto& params = *static_cast<const attn::ScreenCompareParams*>(bytes);
      return run_ctas(shape, 0, [&](void*) { attn::screen_compare<NoConfig>(params); });
    }
    if (shape.shared_bytes != static_cast<int>(sizeof(Memory))) {
      throw std::logic_error("shared memory of another size than the kernel's");
    }
    const auto& params = *static_cast<const attn::ScreenProductParams*>(bytes);
    run_ctas(shape, sizeof(Memory), [&](void* memory) {
      attn::ScreenProductCta(params, *static_cast<Memory*>(memory)).multiply();
    });
  }

  Target target_;
};

}  // namespace attnbench::cuda
