// Screening of a case by the device's kernels on emulated threads.
#pragma once

#include <memory>
#include <span>

#include "bench/judge/device_screen.h"
#include "core/error.h"
#include "core/problem/problem.h"
#include "ops/cuda/testing/emulated_screen_testing.h"
#include "ops/ops.h"

namespace attnbench {

/// The batch of a decoder as that of a small MLA model, two heads of 24 + 8 columns over latents of
/// 32.
inline Problem as_latents(Problem problem) {
  problem.attention.type = AttentionType::kMla;
  problem.mla.kv_lora_rank = 32;
  problem.mla.qk_nope_head_dim = 24;
  problem.mla.qk_rope_head_dim = 8;
  problem.mla.v_head_dim = 16;
  problem.attention.num_heads = problem.attention.num_kv_heads = 2;
  problem.attention.head_size = 32;
  problem.attention.v_head_size = 16;
  return problem;
}

/// The emulated kernels with the memory that they work in.
class EmulatedRowScreen final : public RowScreen {
 public:
  /// `spoil`: what it says of a right output is a little off.
  explicit EmulatedRowScreen(bool spoil = false) : spoil_(spoil) {}

  ScreenTable compare(const AttentionMath& math, const ReferenceInputs& inputs,
                      const ScreenedOutput& output) override {
    return spoilt(screen_->compare(math, inputs, output));
  }
  ScreenTable compare_latent(const MlaReferenceInputs& inputs,
                             const ScreenedOutput& output) override {
    return spoilt(screen_->compare_latent(inputs, output));
  }
  ScreenTable compare_listed(const AttentionMath& math, const ReferenceInputs& inputs,
                             std::span<const std::int32_t> keys,
                             const ScreenedOutput& output) override {
    return screen_->compare_listed(math, inputs, keys, output);
  }
  ScreenTable compare_latent_rank(const MlaReferenceInputs& inputs, const DcpGroup& group, int rank,
                                  const ScreenedOutput& output) override {
    return screen_->compare_latent_rank(inputs, group, rank, output);
  }
  ScreenTable compare_part(const AttentionMath& math, const ReferenceInputs& inputs,
                           const ScreenedPart& part, const ScreenedOutput& output) override {
    return spoilt(screen_->compare_part(math, inputs, part, output));
  }
  ScreenTable compare_latent_part(const MlaReferenceInputs& inputs, const ScreenedPart& part,
                                  const ScreenedOutput& output) override {
    return spoilt(screen_->compare_latent_part(inputs, part, output));
  }
  void release() override { screen_->release(); }

 private:
  ScreenTable spoilt(ScreenTable table) const {
    if (!spoil_) return table;
    table.of[table.of.size() / 2].expected *= 1 + 1e-6;
    for (ScreenedRow& row : table.of) row.lse += 1e-6;
    return table;
  }

  bool spoil_;
  std::unique_ptr<Ops> ops_ = make_cpu_ops(1);
  cuda::EmulatedScreenLauncher launcher_;
  std::unique_ptr<RowScreen> screen_ = make_device_screen(*ops_, launcher_);
};

}  // namespace attnbench
