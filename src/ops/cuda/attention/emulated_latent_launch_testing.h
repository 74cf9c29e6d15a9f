// Launches of attention over latents on emulated CTAs, for what a candidate chooses. For doctest
// cases, which include doctest first.
#pragma once

#include <algorithm>
#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "ops/cuda/testing/emulated_latent_testing.h"
#include "ops/cuda/testing/emulated_runs_testing.h"

#include "kernels/attention/latent/latent_layout.cuh"
#include "ops/cuda/attention/attend_latent_cases_testing.h"
#include "ops/cuda/attention/candidates.h"
#include "ops/cuda/vector_choice.h"
#include "ops/forwarding_ops.h"

namespace attnbench::cuda {

/// A kernel's parameter, and the constant of a spec.
template <class T>
const T& argument(const KernelArgument& of) {
  return *static_cast<const T*>(of.bytes);
}
inline std::string constant(const KernelSpec& spec, const std::string& name) {
  for (const auto& [of, value] : spec.constants) {
    if (of == name) return value;
  }
  return "";
}
/// Runs what a candidate launches on emulated CTAs, no more than `num_sms` of a grid that may have
/// any number.
class EmulatedLauncher : public Launcher {
 public:
  explicit EmulatedLauncher(int num_sms) { target_.num_sms = num_sms; }
  const Target& target() const override { return target_; }
  int num_ctas = 0;

 protected:
  void run_grid(const LaunchShape& shape, int shared_end, const std::function<void()>& work) {
    const auto threads = static_cast<int>(shape.threads);
    CHECK(shape.shared_bytes == shared_end - attn::kLatentBase);
    gridDim.x = static_cast<unsigned>(shape.grid_x);
    const auto cluster = static_cast<int>(shape.cluster_x);
    if (cluster > 1) {
      for (unsigned first = 0; first < gridDim.x; first += shape.cluster_x) {
        num_ctas += cluster;
        run_emulated_cluster(cluster, first, threads, shared_end, work);
      }
      return;
    }
    for (blockIdx.x = 0; blockIdx.x < gridDim.x; ++blockIdx.x) {
      ++num_ctas;
      run_emulated_cta(threads, shared_end, work);
    }
  }

 private:
  Target target_ = target_of_sm(90);
};

/// Attention by a candidate on emulated CTAs, everything else by the CPU.
class CandidateOps final : public ForwardingOps {
 public:
  CandidateOps(Ops& cpu, const AttendCandidate& candidate, Launcher& launcher)
      : ForwardingOps(cpu), candidate_(candidate), launcher_(launcher) {}
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

 private:
  void run(const AttendCall& call) {
    REQUIRE(candidate_.misfit(launcher_.target(), call) == "");
    candidate_.launch(launcher_, call);
  }
  const AttendCandidate& candidate_;
  Launcher& launcher_;
};

// As on a GPU: P is rounded to 16 bits, and so is the output.
inline double tolerance_of(bool is_f16) { return is_f16 ? 1e-2 : 4e-2; }

/// One of gathered_cases().
inline GatheredCase gathered_case(const std::string& name) {
  const std::vector<GatheredCase> cases = gathered_cases();
  const auto c = std::ranges::find_if(cases, [&](const auto& any) { return any.of.name == name; });
  REQUIRE(c != cases.end());
  return *c;
}

}  // namespace attnbench::cuda
