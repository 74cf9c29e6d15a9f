// Runs of Hopper kernels on emulated threads: one CTA with its copies, barriers and products, and
// results held against those of the CPU.
#pragma once

#include <cmath>
#include <cstring>
#include <functional>
#include <memory>
#include <vector>

#include "core/tensor.h"
#include "ops/cuda/testing/emulated_hopper_testing.h"

namespace attnbench::cuda {

/// A CTA of `threads` that does `work`; `shared_bytes` of shared memory were NaN before. No copy,
/// barrier or product may be left open.
inline void run_emulated_cta(int threads, int shared_bytes, const std::function<void()>& work) {
  const auto cta = std::make_unique<EmulatedCta>(threads, static_cast<std::size_t>(shared_bytes));
  const auto hopper = std::make_unique<EmulatedHopper>();
  run_with(*hopper);
  std::memset(cta->shared(), 0xFF, static_cast<std::size_t>(shared_bytes));
  cta->run(work);
  CHECK_FALSE(hopper->has_open_work());
}

/// CTAs of a cluster, beginning with number `first` of the grid, side by side.
inline void run_emulated_cluster(int size, unsigned first, int threads, int shared_bytes,
                                 const std::function<void()>& work) {
  std::vector<EmulatedHopper> hoppers(static_cast<std::size_t>(size));
  std::vector<std::unique_ptr<EmulatedCta>> ctas;
  EmulatedCluster cluster;
  cluster_hoppers.clear();
  for (EmulatedHopper& hopper : hoppers) {
    const auto bytes = static_cast<std::size_t>(shared_bytes);
    ctas.push_back(std::make_unique<EmulatedCta>(threads, bytes));
    std::memset(ctas.back()->shared(), 0xFF, bytes);
    ctas.back()->begin(work);
    cluster.ctas.push_back(ctas.back().get());
    cluster_hoppers.push_back(&hopper);
  }
  const struct Running {
    explicit Running(EmulatedCluster& of) { running_cluster = &of; }
    ~Running() { running_cluster = nullptr; }
  } running(cluster);
  const auto progress = [&] {
    std::int64_t sum = 0;
    for (const auto& cta : ctas) sum += cta->progress();
    return sum;
  };
  for (std::int64_t before = -1; before != progress();) {
    before = progress();
    for (std::size_t rank = 0; rank < ctas.size(); ++rank) {
      run_with(hoppers[rank]);
      const OwnAccesses own;
      blockIdx.x = first + static_cast<unsigned>(rank);
      ctas[rank]->take_turn();
    }
  }
  for (std::size_t rank = 0; rank < ctas.size(); ++rank) {
    CAPTURE(rank);
    CHECK(ctas[rank]->has_ended());
    CHECK_FALSE(hoppers[rank].has_open_work());
  }
}

/// NaN and infinities are the same; numbers are as near as `tolerance` says of numbers about 1, and
/// `absolute` of all.
inline bool is_near(double a, double b, double tolerance, double absolute) {
  if (std::isnan(a) || std::isnan(b)) return std::isnan(a) && std::isnan(b);
  if (std::isinf(a) || std::isinf(b)) return a == b;
  return std::fabs(a - b) <= absolute + tolerance * (1e-2 + std::fabs(b));
}

/// Every element of every tensor is close enough.
inline void check_same(const std::vector<Tensor>& actual, const std::vector<Tensor>& expected,
                       double tolerance, double absolute) {
  REQUIRE(actual.size() == expected.size());
  for (std::size_t i = 0; i < expected.size(); ++i) {
    CAPTURE(i);
    std::int64_t wrong = 0;
    std::int64_t at = -1;
    for (std::int64_t j = 0; j < expected[i].num_elements(); ++j) {
      if (is_near(static_cast<double>(actual[i].at(j)), static_cast<double>(expected[i].at(j)),
                  tolerance, absolute)) {
        continue;
      }
      if (wrong++ == 0) at = j;
    }
    CAPTURE(at);
    if (at >= 0) {
      CAPTURE(actual[i].at(at));
      CAPTURE(expected[i].at(at));
      CHECK(wrong == 0);
    }
  }
}
inline void check_same(const std::vector<Tensor>& actual, const std::vector<Tensor>& expected,
                       double tolerance) {
  check_same(actual, expected, tolerance, tolerance / 2);
}

}  // namespace attnbench::cuda
