// Screening without a device: the host's plan and the device code of kernels/measure/screen*.cuh,
// CTA by CTA on emulated threads, with memory of the CPU's operations.
#pragma once

#include <string>
#include <vector>

#include "ops/cuda/testing/emulated_cta_testing.h"

#include "kernels/measure/screen.cuh"
#include "kernels/measure/screen_latent.cuh"
#include "kernels/measure/screen_rows.cuh"
#include "ops/cuda/launcher.h"
#include "ops/cuda/measure/screen.h"

namespace attnbench::cuda {

template <int kRows, int kColumns, bool kWrites, unsigned kSet>
struct EmulatedScreenConfig {
  static constexpr int kRowsPerThread = kRows;
  static constexpr int kColumnsPerThread = kColumns;
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
    const bool few_columns = constant(spec, "int kColumnsPerThread") == "4";
    if (spec.function == "attn::screen_value_squares") {
      return few_columns ? run_squares<4>(shape, params) : run_squares<8>(shape, params);
    }
    const bool few_rows = constant(spec, "int kRowsPerThread") == "1";
    if (few_rows && few_columns) return run_tiles<1, 4>(spec, shape, params);
    if (few_rows) return run_tiles<1, 8>(spec, shape, params);
    if (few_columns) return run_tiles<4, 4>(spec, shape, params);
    return run_tiles<4, 8>(spec, shape, params);
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
      attn::screen_value_squares<EmulatedScreenConfig<1, kColumns, true, kAll>>(params);
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
