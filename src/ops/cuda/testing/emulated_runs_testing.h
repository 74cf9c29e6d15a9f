// Runs of Hopper kernels on emulated threads: one CTA with its copies, barriers and products, and
// results held against those of the CPU.
#pragma once

#include <cmath>
#include <cstring>
#include <functional>
#include <vector>

#include "core/tensor.h"
#include "ops/cuda/testing/emulated_hopper_testing.h"

namespace attnbench::cuda {

/// A CTA of `threads` that does `work`; `shared_bytes` of shared memory were NaN before. No copy,
/// barrier or product may be left open.
inline void run_emulated_cta(int threads, int shared_bytes, const std::function<void()>& work) {
  EmulatedCta cta(threads, static_cast<std::size_t>(shared_bytes));
  EmulatedHopper hopper;
  running_hopper = &hopper;
  std::memset(cta.shared(), 0xFF, static_cast<std::size_t>(shared_bytes));
  cta.run(work);
  CHECK_FALSE(hopper.has_open_work());
}

/// NaN and infinities are the same; numbers are as near as `tolerance` says of numbers about 1.
inline bool close_enough(double a, double b, double tolerance) {
  if (std::isnan(a) || std::isnan(b)) return std::isnan(a) && std::isnan(b);
  if (std::isinf(a) || std::isinf(b)) return a == b;
  return std::fabs(a - b) <= tolerance / 2 + tolerance * (1e-2 + std::fabs(b));
}

/// Every element of every tensor is close enough.
inline void check_same(const std::vector<Tensor>& actual, const std::vector<Tensor>& expected,
                       double tolerance) {
  REQUIRE(actual.size() == expected.size());
  for (std::size_t i = 0; i < expected.size(); ++i) {
    CAPTURE(i);
    std::int64_t wrong = 0;
    std::int64_t at = -1;
    for (std::int64_t j = 0; j < expected[i].num_elements(); ++j) {
      if (close_enough(static_cast<double>(actual[i].at(j)), static_cast<double>(expected[i].at(j)),
                       tolerance)) {
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

}  // namespace attnbench::cuda
