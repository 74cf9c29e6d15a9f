// Screening without a device: the host's plan and the device code of kernels/measure/screen*.cuh,
// CTA by CTA on emulated threads, with memory of the CPU's operations.
#pragma once

#include <string>
#include <vector>

#include "ops/cuda/testing/emulated_cta_testing.h"

#include "kernels/measure/screen.cuh"
#include "kernels/measure/screen_latent.cuh"
#include "ops/cuda/launcher.h"
#include "ops/cuda/measure/screen.h"

namespace attnbench::cuda {

template <int kRows, int kColumns>
struct EmulatedScreenConfig {
  static constexpr int kRowsPerThread = kRows;
  static constexpr int kColumnsPerThread = kColumns;
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
    if (spec.source == "measure/screen_latent.cuh") return run_latent(spec, shape, arguments);
    const auto& params = *static_cast<const attn::ScreenParams*>(arguments.at(0).bytes);
    const bool few_rows = spec.constants.at(0).second == "1";
    const bool few_columns = spec.constants.at(1).second == "4";
    if (few_rows && few_columns) return run<EmulatedScreenConfig<1, 4>>(spec, shape, params);
    if (few_rows) return run<EmulatedScreenConfig<1, 8>>(spec, shape, params);
    if (few_columns) return run<EmulatedScreenConfig<4, 4>>(spec, shape, params);
    return run<EmulatedScreenConfig<4, 8>>(spec, shape, params);
  }

  std::vector<KernelSpec> launched;

 private:
  template <class Config>
  void run(const KernelSpec& spec, const LaunchShape& shape, const attn::ScreenParams& params) {
    using Memory = attn::ScreenMemory<Config>;
    if (spec.function != "attn::screen_value_squares" &&
        shape.shared_bytes != static_cast<int>(sizeof(Memory))) {
      throw std::logic_error("shared memory of another size than the kernel's");
    }
    for (std::int64_t i = 0; i < shape.grid_x; ++i) {
      blockIdx.x = static_cast<unsigned>(i);
      EmulatedCta cta(shape.threads, sizeof(Memory));
      cta.run([&] {
        if (spec.function == "attn::screen_value_squares") {
          return attn::screen_value_squares<Config>(params);
        }
        attn::ScreenCta<Config> screen(params, *reinterpret_cast<Memory*>(cta.shared()));
        if (spec.function == "attn::screen_merge") return screen.merge();
        screen.attend();
      });
    }
  }

  struct NoConfig {};

  void run_latent(const KernelSpec& spec, const LaunchShape& shape,
                  const std::vector<KernelArgument>& arguments) {
    using Memory = attn::ScreenProductMemory;
    const bool is_product = spec.function == "attn::screen_product";
    if (is_product && shape.shared_bytes != static_cast<int>(sizeof(Memory))) {
      throw std::logic_error("shared memory of another size than the kernel's");
    }
    const void* const bytes = arguments.at(0).bytes;
    for (std::int64_t i = 0; i < shape.grid_x; ++i) {
      blockIdx.x = static_cast<unsigned>(i);
      EmulatedCta cta(shape.threads, sizeof(Memory));
      cta.run([&] {
        if (!is_product) {
          return attn::screen_compare<NoConfig>(
              *static_cast<const attn::ScreenCompareParams*>(bytes));
        }
        attn::ScreenProductCta(*static_cast<const attn::ScreenProductParams*>(bytes),
                               *reinterpret_cast<Memory*>(cta.shared()))
            .multiply();
      });
    }
  }

  Target target_;
};

}  // namespace attnbench::cuda
